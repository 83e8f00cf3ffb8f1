// situglu: beta * tanh(gate / beta) * sigmoid(gate) * L(up), L(u) = u or b * tanh(u / b) with b =
// linear_beta.
#pragma once

#include "activation/exp.h"
#include "activation/params.h"

namespace megamoe::activation {

/// tanh within 2^-20: a polynomial near zero, where the exponential form would cancel.
template <class V>
V tanh(V z) {
  const V one = V::set(1.0f);
  const V far = V::set(2.0f) / (exp(V::set(-2.0f) * z) + one) - one;
  const V square = z * z;
  V p = square * V::set(0.0157396831f) + V::set(-0.0523039624f);
  p = V::fma(p, square, V::set(0.133152977f));
  p = V::fma(p, square, V::set(-0.333327681f));
  const V near = V::fma(z * square, p, z);
  return V::select_less(V::abs(z), V::set(0.6f), near, far);
}

template <class V>
struct SituGlu {
  explicit SituGlu(const ActivationParams& params)
      : beta(V::set(params.beta)),
        inverse_beta(V::set(inverse(params.beta))),
        linear_beta(V::set(params.linear_beta)),
        inverse_linear_beta(V::set(params.linear_beta > 0 ? inverse(params.linear_beta) : 0.0f)),
        bounded(params.linear_beta > 0) {}
  V operator()(V gate, V up) const {
    const V gated = tanh(gate * inverse_beta) * (beta / (exp(V::negate(gate)) + V::set(1.0f)));
    if (bounded) return gated * (linear_beta * tanh(up * inverse_linear_beta));
    return gated * clip(up, V::set(kFloatMax));  // an infinite up must not turn a closed gate into NaN
  }
  /// Of the smallest numbers the inverse is no float: an infinity times a gate of 0 would be NaN.
  static float inverse(float value) {
    const float result = 1.0f / value;
    return result < kFloatMax ? result : kFloatMax;
  }
  V beta, inverse_beta, linear_beta, inverse_linear_beta;
  bool bounded;
};

}  // namespace megamoe::activation
