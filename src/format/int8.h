// int8: conversion from float.
#pragma once

#include <cmath>
#include <cstdint>

namespace megamoe::format {

/// Round to nearest, ties to even, in the default rounding mode; saturates to [-128, 127]; NaN becomes 0.
inline int8_t int8_from_float(float value) {
  if (std::isnan(value)) return 0;
  const float rounded = std::nearbyint(value);
  if (rounded <= -128.0f) return -128;
  if (rounded >= 127.0f) return 127;
  return static_cast<int8_t>(rounded);
}

}  // namespace megamoe::format
