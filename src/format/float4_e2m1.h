// FP4 E2M1: s ee m, bias 1, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6; no infinity, no NaN.
#pragma once

#include "format/small_float.h"

namespace megamoe::format {

inline constexpr SmallFloat kE2M1{1, 0, 7};

inline float e2m1_to_float(uint8_t code) {
  const float value = kE2M1.value(code & 7);
  return code & 8 ? -value : value;
}

/// Nearest, ties to even, sign of zero kept. Past 6 becomes 6; NaN becomes +0, there being no other place for
/// it.
inline uint8_t e2m1_from_float(float value) {
  if (std::isnan(value)) return 0;
  const uint32_t code = std::isinf(value) ? kE2M1.largest : kE2M1.nearest(std::fabs(value));
  return static_cast<uint8_t>((std::signbit(value) ? 8 : 0) | std::min(code, kE2M1.largest));
}

}  // namespace megamoe::format
