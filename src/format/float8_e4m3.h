// FP8 E4M3FN: s eeee mmm, bias 7, no infinity, NaN at 7f and ff.
#pragma once

#include "format/small_float.h"

namespace megamoe::format {

inline constexpr SmallFloat kE4M3{3, -6, 0x7e};

inline float e4m3_to_float(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float value = magnitude > kE4M3.largest ? std::nanf("") : kE4M3.value(magnitude);
  return code & 0x80 ? -value : value;
}

/// Nearest, ties to even. Saturating: past 448 becomes 448, NaN becomes +0. Else past 448 becomes NaN.
inline uint8_t e4m3_from_float(float value, bool saturate) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return saturate ? 0 : sign | 0x7f;
  const uint32_t code = std::isinf(value) ? kE4M3.largest + 1 : kE4M3.nearest(std::fabs(value));
  return static_cast<uint8_t>(sign | std::min(code, saturate ? kE4M3.largest : kE4M3.largest + 1));
}

}  // namespace megamoe::format
