// HIFLOAT8: a sign and seven bits whose prefix says how many of them are exponent and how many mantissa.
#pragma once

#include <cstdint>

namespace megamoe::format {

/// Value of every code.
struct HiFloat8Values {
  float of[256];
};
extern const HiFloat8Values kHiFloat8Values;

inline float hif8_to_float(uint8_t code) {
  return kHiFloat8Values.of[code];
}

/// Nearest code, ties to the larger magnitude; magnitudes below 2^-23 become 0 and zero has no sign.
/// Saturating: 2^15 stands for everything past it, NaN becomes 0. Else from 1.25 * 2^15 on infinity, and NaN
/// stays NaN.
uint8_t hif8_from_float(float value, bool saturate);

}  // namespace megamoe::format
