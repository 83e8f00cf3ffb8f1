// exp and the logistic quotient, over any float vector type V.
#pragma once

#include "activation/params.h"

namespace megamoe::activation {

/// e^x within 2 units in the last place; infinity above the range, e^-87 below -87 (every use here adds 1,
/// and subnormal numbers are slow); NaN stays NaN.
template <class V>
V exp(V x) {
  // The variable is the second operand of min and max: NaN passes.
  const V bounded = V::max(V::set(-87.0f), V::min(V::set(90.0f), x));
  const V round = V::set(12582912.0f);  // 1.5 * 2^23: adding it leaves an integer in the low bits
  const V n = (bounded * V::set(1.44269504f) + round) - round;
  // ln 2 in two parts; n times the first is exact.
  V r = V::fma(n, V::set(-0.693359375f), bounded);
  r = V::fma(n, V::set(2.12194440e-4f), r);
  // Taylor series: with |r| <= ln(2) / 2 the first term left out is below 2^-27.
  V p = V::set(1.0f / 5040);
  p = V::fma(p, r, V::set(1.0f / 720));
  p = V::fma(p, r, V::set(1.0f / 120));
  p = V::fma(p, r, V::set(1.0f / 24));
  p = V::fma(p, r, V::set(1.0f / 6));
  p = V::fma(p, r, V::set(0.5f));
  p = V::fma(p, r, V::set(1.0f));
  p = V::fma(p, r, V::set(1.0f));
  return V::scale_exponent(p, n);
}

/// x / (exp(-z) + 1), the quotient of every gate here. -infinity gives -0: the numerator is kept finite.
template <class V>
V times_sigmoid(V x, V z) {
  return V::max(V::set(-kFloatMax), x) / (exp(V::negate(z)) + V::set(1.0f));
}

/// x limited to [-limit, limit]; NaN stays NaN.
template <class V>
V clip(V x, V limit) {
  return V::max(V::negate(limit), V::min(limit, x));
}

}  // namespace megamoe::activation
