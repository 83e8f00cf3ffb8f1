// int4: two's complement, two per byte, and eight per int32 in the view of the operator documents.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace megamoe::format {

inline int8_t int4_to_int(uint8_t code) {
  return static_cast<int8_t>((code & 15) < 8 ? code & 15 : (code & 15) - 16);
}

/// Round to nearest, ties to even; saturates to [-8, 7]; NaN becomes 0.
inline uint8_t int4_from_float(float value) {
  if (std::isnan(value)) return 0;
  return static_cast<uint8_t>(static_cast<int>(std::clamp(std::nearbyint(value), -8.0f, 7.0f)) & 15);
}

/// Elements of one int32 word: element i is bits 4i to 4i + 3.
inline constexpr int kInt4PerInt32 = 8;
inline int8_t int4_of_int32(int32_t word, int i) {
  return int4_to_int(static_cast<uint8_t>(static_cast<uint32_t>(word) >> 4 * i & 15));
}

}  // namespace megamoe::format
