// How the caller held the weights of a linear layer; packed weights remember it.
#pragma once

#include <cstdint>
#include <vector>

#include "megamoe/mega_moe.h"

namespace megamoe::pack {

/// Tensors that may be one for all experts, or one for each.
struct GivenTensors {
  DType dtype = DType::kUndefined;  ///< undefined = none are given
  bool stacked = false;

  bool present() const { return dtype != DType::kUndefined; }
};

/// Types, layouts and forms as they were given, before anything was brought into another order.
struct GivenForm {
  GivenTensors weight, scale, bias, added_bias;
  Layout layout = Layout::kNd;
  bool k_last = false;
  bool up = false;
  int64_t scale_group = 0;
  int64_t interleave = 0;
};

GivenForm given_form(const LinearWeights& weights);

}  // namespace megamoe::pack
