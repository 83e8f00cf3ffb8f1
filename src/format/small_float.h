// What the 8-bit and 4-bit formats of sign, exponent and mantissa have in common.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace megamoe::format {

/// A format with `mantissa_bits`, whose smallest normal number is 2^first_exponent and whose largest code is
/// `largest`.
struct SmallFloat {
  int mantissa_bits;
  int first_exponent;
  uint32_t largest;

  /// Value of a magnitude code up to `largest`.
  float value(uint32_t code) const {
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    const uint32_t units = exponent == 0 ? mantissa : mantissa | 1u << mantissa_bits;
    return std::ldexp(static_cast<float>(units), first_exponent + std::max(exponent, 1) - 1 - mantissa_bits);
  }

  /// Nearest magnitude code of a finite number, ties to even, as if codes went on past `largest`.
  uint32_t nearest(float size) const {
    const int exponent = std::max(std::ilogb(size), first_exponent);
    const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, mantissa_bits - exponent)));
    return (static_cast<uint32_t>(exponent - first_exponent) << mantissa_bits) + units;
  }
};

}  // namespace megamoe::format
