// float16: IEEE binary16.
#pragma once

#include <bit>
#include <cstdint>

namespace megamoe::format {

/// Tells float16 elements from bfloat16 ones, which are plain uint16_t.
struct Float16 {
  uint16_t bits;
};

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112u) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero and subnormals: exact in float32
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// Round to nearest, ties to even; overflow to infinity; NaN stays NaN (quiet, sign kept).
inline uint16_t f16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and up
  uint32_t significand = magnitude & 0x7fffffu;
  const int exponent = static_cast<int>(magnitude >> 23);
  uint32_t kept;     // result before rounding
  uint32_t dropped;  // bits below the last kept one, aligned to the top of the word
  if (exponent >= 113) {
    kept = static_cast<uint32_t>(exponent - 112) << 10 | significand >> 13;
    dropped = significand << 19;
  } else {
    const int shift = 126 - exponent;  // 14 .. : the last kept bit is worth 2^-24
    if (shift > 24) return sign;
    significand |= 0x800000u;
    kept = significand >> shift;
    dropped = significand << (32 - shift);
  }
  constexpr uint32_t kHalf = 0x80000000u;
  if (dropped > kHalf || (dropped == kHalf && (kept & 1u))) ++kept;
  return static_cast<uint16_t>(sign | kept);
}

}  // namespace megamoe::format
