// gelu, tanh form: z * sigmoid(sqrt(8 / pi) * (z + 0.044715 z^3)). Not gated, never clamped.
#pragma once

#include "activation/exp.h"
#include "activation/params.h"

namespace megamoe::activation {

template <class V>
struct Gelu {
  explicit Gelu(const ActivationParams&) {}
  V operator()(V z) const {
    const V cubic = V::set(0.044715f) * (z * z * z);
    return times_sigmoid(z, V::set(1.59576912f) * (z + cubic));
  }
};

}  // namespace megamoe::activation
