// FP8 E5M2: s eeeee mm, bias 15, infinity at 7c and fc, NaN above.
#pragma once

#include <limits>

#include "format/small_float.h"

namespace megamoe::format {

inline constexpr SmallFloat kE5M2{2, -14, 0x7b};

inline float e5m2_to_float(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float value = magnitude > kE5M2.largest + 1    ? std::nanf("")
                      : magnitude == kE5M2.largest + 1 ? std::numeric_limits<float>::infinity()
                                                       : kE5M2.value(magnitude);
  return code & 0x80 ? -value : value;
}

/// Nearest, ties to even. Saturating: past 57344 becomes 57344, NaN becomes +0. Else past 57344 becomes
/// infinity and NaN stays NaN.
inline uint8_t e5m2_from_float(float value, bool saturate) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return saturate ? 0 : sign | 0x7f;
  const uint32_t code = std::isinf(value) ? kE5M2.largest + 1 : kE5M2.nearest(std::fabs(value));
  return static_cast<uint8_t>(sign | std::min(code, saturate ? kE5M2.largest : kE5M2.largest + 1));
}

}  // namespace megamoe::format
