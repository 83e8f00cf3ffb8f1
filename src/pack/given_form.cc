// Reads the form of raw weights off their tensors.
#include "pack/given_form.h"

namespace megamoe::pack {
namespace {

// A stacked tensor has one dimension more than one of an expert, which has 2 as a weight, and 1 or 3 as
// scales. Beside stacked weights of several experts one tensor is meant to be stacked, whatever its shape.
GivenTensors given(const std::vector<TensorView>& tensors, bool weight, bool several = false) {
  if (tensors.empty()) return {};
  const bool stacked = several || tensors[0].dims % 2 == (weight ? 1 : 0);
  return {tensors[0].dtype, tensors.size() == 1 && stacked};
}

}  // namespace

GivenForm given_form(const LinearWeights& weights) {
  GivenForm form;
  form.weight = given(weights.weight, true);
  const bool several = form.weight.stacked && weights.weight[0].shape[0] > 1;
  form.scale = given(weights.scale, false, several);
  form.bias = given(weights.bias, false, several);
  form.added_bias = given(weights.added_bias, false, several);
  if (!weights.weight.empty()) form.layout = weights.weight[0].layout;
  form.k_last = weights.k_last;
  form.up = !weights.up.empty();
  form.scale_group = weights.scale_group;
  form.interleave = weights.interleave;
  return form;
}

}  // namespace megamoe::pack
