// Codes of any width in a row of memory; 4-bit ones lie two per byte, the even element in the low half.
#pragma once

#include <cstdint>
#include <cstring>

namespace megamoe::format {

/// Element i of a row of `bits`-bit codes, 4 to 32.
inline uint32_t read_code(const void* row, int bits, int64_t i) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  if (bits == 4) return bytes[i / 2] >> (i % 2 * 4) & 15u;
  uint32_t code = 0;
  std::memcpy(&code, bytes + i * (bits / 8), static_cast<size_t>(bits / 8));
  return code;
}

inline void write_code(void* row, int bits, int64_t i, uint32_t code) {
  auto* bytes = static_cast<uint8_t*>(row);
  if (bits == 4) {
    const int shift = static_cast<int>(i % 2 * 4);
    bytes[i / 2] = static_cast<uint8_t>((bytes[i / 2] & ~(15u << shift)) | (code & 15u) << shift);
  } else {
    std::memcpy(bytes + i * (bits / 8), &code, static_cast<size_t>(bits / 8));
  }
}

}  // namespace megamoe::format
