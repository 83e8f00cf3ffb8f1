// swigluoai: (clip(up, c) + beta) * g * sigmoid(alpha * g) with g = min(gate, c).
#pragma once

#include "activation/exp.h"
#include "activation/params.h"

namespace megamoe::activation {

template <class V>
struct SwigluOai {
  explicit SwigluOai(const ActivationParams& params)
      : clamp(V::set(params.clamp)), alpha(V::set(params.alpha)), beta(V::set(params.beta)) {}
  V operator()(V gate, V up) const {
    const V g = V::min(clamp, gate);
    return (clip(up, clamp) + beta) * times_sigmoid(g, alpha * g);
  }
  V clamp, alpha, beta;
};

}  // namespace megamoe::activation
