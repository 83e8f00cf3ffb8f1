// Legal settings, layers and tensors of every profile, for tests that change one thing.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "support/layer.h"

namespace megamoe::test {

/// Memory of zeros that every tensor of a setup may point to; written by nobody.
inline const void* zeros() {
  static const void* memory = std::calloc(size_t{64} << 20, 1);
  return memory;
}

/// The smallest legal settings of a profile that leave room to move.
inline BufferConfig smallest_config(const std::string& profile) {
  BufferConfig c;
  c.profile = profile;
  c.num_experts = 2;
  c.num_max_tokens_per_rank = 8;
  c.num_topk = 2;
  c.hidden = 1024;
  c.intermediate_hidden = 512;
  if (profile == "cpu") c.hidden = c.intermediate_hidden = 64;
  if (profile == "ascend_a2_a3") {
    c.dispatch_quant_mode = 2;
    c.dispatch_quant_out_dtype = DType::kInt8;
  } else if (profile != "cpu") {
    c.dispatch_quant_mode = 4;
    c.dispatch_quant_out_dtype = DType::kFloat8E4M3;
  }
  if (profile == "mega_moe_v1") {
    c.num_experts = 6;
    c.num_topk = 6;
    c.hidden = 4096;
  }
  return c;
}

/// A legal layer and call on one of two ranks.
struct LimitSetup {
  BufferConfig c;
  Layer l;
  CallArgs a;

  LimitSetup(const std::string& profile, const std::string& scenario) : c(smallest_config(profile)) {
    const ScenarioTraits& traits = traits_of(scenario);
    c.dispatch_quant_mode = traits.mode;
    c.dispatch_quant_out_dtype = traits.out;
    experts_ = c.num_experts / 2;
    l.weight1 = linear(traits, scenario, experts_, c.hidden, 2 * c.intermediate_hidden, 1);
    l.weight2 = linear(traits, scenario, experts_, c.intermediate_hidden, c.hidden, 2);
    tokens(2);
  }

  /// Changes of the layer.
  void activation(const char* name) {
    l.activation.name = name;
    if (l.activation.name != "gelu") return;
    TensorView& weight = l.weight2.weight[0];
    const ScenarioTraits& traits = *std::find_if(std::begin(kScenarioTraits), std::end(kScenarioTraits),
                                                 [&](const auto& t) { return t.weight == weight.dtype; });
    l.weight2 = linear(traits, traits.name, experts_, 2 * c.intermediate_hidden, c.hidden, 2);
  }
  void layout(Layout layout) { l.weight1.weight[0].layout = l.weight2.weight[0].layout = layout; }
  /// Stacked tensors to one per expert, and back.
  static void split(std::vector<TensorView>& tensors) {
    TensorView one = tensors[0];
    const int64_t experts = one.shape[0];
    --one.dims;
    for (int d = 0; d < one.dims; ++d) one.shape[d] = tensors[0].shape[d + 1];
    one.set_contiguous();
    tensors.assign(static_cast<size_t>(experts), one);
  }
  static void stack(std::vector<TensorView>& tensors) {
    TensorView all = tensors[0];
    for (int d = 0; d < tensors[0].dims; ++d) all.shape[d + 1] = tensors[0].shape[d];
    all.shape[0] = static_cast<int64_t>(tensors.size());
    ++all.dims;
    all.set_contiguous();
    tensors = {all};
  }
  void per_expert() {
    for (LinearWeights* weights : {&l.weight1, &l.weight2}) split(weights->weight), split(weights->scale);
  }
  void stacked() {
    for (LinearWeights* weights : {&l.weight1, &l.weight2}) stack(weights->weight);
  }
  static std::vector<TensorView> floats(int64_t n) { return {TensorView(zeros(), DType::kFloat32, {n})}; }
  void shared(const std::string& scenario, int64_t count) {
    const ScenarioTraits& traits = traits_of(scenario);
    l.shared_weight1 = linear(traits, scenario, count, c.hidden, 2 * c.intermediate_hidden, 1);
    l.shared_weight2 = linear(traits, scenario, count, c.intermediate_hidden, c.hidden, 2);
    if (traits.mx()) l.shared_expert_quant_out_dtype = traits.out;
  }

  /// Packs all weights. False where one of them cannot be packed.
  bool pack() {
    const bool gated = l.activation.name != "gelu";
    const auto one = [&](LinearWeights& weights, std::shared_ptr<const PackedWeights>& packed, bool first) {
      if (weights.weight.empty()) return true;
      if (packed != nullptr) return false;                                 // given both ways
      if (weights.weight[0].elements() > int64_t{32} << 20) return false;  // more than the memory of zeros
      auto made =
          first ? PackedWeights::pack_linear1(weights, gated, 1) : PackedWeights::pack_linear2(weights, 1);
      if (!made) return false;
      packed = *made;
      weights = {};
      return true;
    };
    return one(l.weight1, l.packed1, true) && one(l.weight2, l.packed2, false) &&
           one(l.shared_weight1, l.shared_packed1, true) && one(l.shared_weight2, l.shared_packed2, false);
  }

  /// Changes of the call.
  void tokens(int64_t count) {
    ids_.clear();
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t k = 0; k < c.num_topk; ++k) ids_.push_back(static_cast<int32_t>(k));
    }
    y_.assign(static_cast<size_t>(count * c.hidden), uint16_t{0x7fff});
    nums_.assign(static_cast<size_t>(experts_), -77);
    a.x = {zeros(), DType::kBFloat16, {count, c.hidden}};
    a.topk_ids = {ids_.data(), DType::kInt32, {count, c.num_topk}};
    a.topk_weights = {zeros(), DType::kFloat32, {count, c.num_topk}};
    a.y = {y_.data(), DType::kBFloat16, {count, c.hidden}};
    a.expert_token_nums = {nums_.data(), DType::kInt32, {experts_}};
  }
  TensorView mx_scales() const { return {zeros(), DType::kFloat8E8M0, {a.x.shape[0], c.hidden / 32}}; }
  void codes() {
    c.dispatch_quant_mode = 0;
    a.x = {zeros(), c.dispatch_quant_out_dtype, {a.x.shape[0], c.hidden}};
    a.scales = mx_scales();
  }
  void wide_ids() {
    wide_.assign(ids_.begin(), ids_.end());
    a.topk_ids = {wide_.data(), DType::kInt64, {a.x.shape[0], c.num_topk}};
  }
  void id(int64_t token, int64_t slot, int32_t value) {
    ids_[static_cast<size_t>(token * c.num_topk + slot)] = value;
  }
  TensorView mask(DType type) const { return {zeros(), type, {a.x.shape[0]}}; }

  int64_t local_experts() const { return experts_; }
  bool untouched() const {
    return std::all_of(y_.begin(), y_.end(), [](uint16_t v) { return v == 0x7fff; }) &&
           std::all_of(nums_.begin(), nums_.end(), [](int32_t v) { return v == -77; });
  }

 private:
  /// Weights of one layer in the form that the profile wants.
  LinearWeights linear(const ScenarioTraits& traits, const std::string& scenario, int64_t experts, int64_t k,
                       int64_t n, int layer) const {
    LinearWeights weights;
    weights.k_last = traits.mx();
    if (traits.mx()) {
      const Layout tiled = scenario == "A4W4-FP" && layer == 1 ? Layout::kFractalNz : Layout::kFractalNzC0_32;
      weights.weight = {
          TensorView(zeros(), traits.weight, {experts, n, k}, traits.nibbles() ? tiled : Layout::kNd)};
      weights.scale = {TensorView(zeros(), DType::kFloat8E8M0, {experts, n, (k + 63) / 64, 2})};
      return weights;
    }
    weights.weight = {TensorView(zeros(), traits.weight, {experts, k, n},
                                 traits.nibbles() ? Layout::kFractalNz : Layout::kNd)};
    if (traits.channel_scales()) weights.scale = {TensorView(zeros(), DType::kUInt64, {experts, n})};
    if (traits.nibbles()) weights.bias = {TensorView(zeros(), DType::kFloat32, {experts, n})};
    if (c.profile != "ascend_a2_a3") return weights;
    for (auto* list : {&weights.weight, &weights.scale, &weights.bias}) {
      if (!list->empty()) split(*list);
    }
    return weights;
  }

  int64_t experts_ = 0;
  std::vector<int32_t> ids_;
  std::vector<int64_t> wide_;
  std::vector<uint16_t> y_;
  std::vector<int32_t> nums_;
};

}  // namespace megamoe::test
