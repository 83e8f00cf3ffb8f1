// swiglustep: min(silu(gate), c) * clip(up, c); the limit stands behind the SiLU.
#pragma once

#include "activation/exp.h"
#include "activation/params.h"

namespace megamoe::activation {

template <class V>
struct SwigluStep {
  explicit SwigluStep(const ActivationParams& params) : clamp(V::set(params.clamp)) {}
  V operator()(V gate, V up) const { return V::min(clamp, times_sigmoid(gate, gate)) * clip(up, clamp); }
  V clamp;
};

}  // namespace megamoe::activation
