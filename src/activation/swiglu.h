// swiglu: silu(min(gate, c)) * clip(up, c).
#pragma once

#include "activation/exp.h"
#include "activation/params.h"

namespace megamoe::activation {

template <class V>
struct Swiglu {
  explicit Swiglu(const ActivationParams& params) : clamp(V::set(params.clamp)) {}
  V operator()(V gate, V up) const {
    const V g = V::min(clamp, gate);
    return times_sigmoid(g, g) * clip(up, clamp);
  }
  V clamp;
};

}  // namespace megamoe::activation
