// The narrow number formats as plain numbers: what a code is worth, and the nearest value that has a code.
#pragma once

#include <cstdint>

#include "megamoe/tensor.h"

namespace megamoe::reference {

/// A format of sign, exponent and mantissa with subnormals.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  float largest;         ///< largest finite value
  int largest_exponent;  ///< floor(log2(largest))
};

/// Description of float8_e4m3fn, float8_e5m2 and float4_e2m1; null for other types.
const SmallFloat* small_float(DType dtype);

/// Nearest value of the format, ties to even. Past the largest value comes the largest, NaN becomes 0, zero
/// keeps its sign.
float round_saturating(const SmallFloat& format, double value);

/// Number of element `offset` of a tensor of any type that tokens, weights or their scales have. Elements of
/// 4 bits lie two in a byte, the even one in the low half.
float read_number(const TensorView& tensor, int64_t offset);

}  // namespace megamoe::reference
