// Derived sizes and properties of tensors.
#include "moe/quantities.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "activation/params.h"
#include "pack/given_form.h"
#include "pack/packed_weights.h"

namespace megamoe::moe {
namespace {

using enum Parameter;

/// The parameters of one linear layer.
struct LinearParameters {
  Parameter type, layout, form, k_last, up, scale_group, scale_type, scale_form, bias, added_bias, bias_form;
};
constexpr LinearParameters kWeight1 = {
    kWeight1Type,       kWeight1Layout,     kWeight1Form, kWeight1KLast, kWeight1Up, kWeight1ScaleGroup,
    kWeightScales1Type, kWeightScales1Form, kBias1,       kAddedBias1,   kBias1Form};
constexpr LinearParameters kWeight2 = {
    kWeight2Type,       kWeight2Layout,     kWeight2Form, kWeight2KLast, kWeight2Up, kWeight2ScaleGroup,
    kWeightScales2Type, kWeightScales2Form, kBias2,       kAddedBias2,   kBias2Form};
constexpr LinearParameters kSharedWeight1 = {
    kSharedWeight1Type, kSharedWeight1Layout,     kSharedWeight1Form,       kSharedWeight1KLast,
    kSharedWeight1Up,   kSharedWeight1ScaleGroup, kSharedWeightScales1Type, kSharedWeightScales1Form,
    kSharedBias1,       kSharedAddedBias1,        kSharedBias1Form};
constexpr LinearParameters kSharedWeight2 = {
    kSharedWeight2Type, kSharedWeight2Layout,     kSharedWeight2Form,       kSharedWeight2KLast,
    kSharedWeight2Up,   kSharedWeight2ScaleGroup, kSharedWeightScales2Type, kSharedWeightScales2Form,
    kSharedBias2,       kSharedAddedBias2,        kSharedBias2Form};

Given given(bool present) {
  return present ? Given::kGiven : Given::kNone;
}

Form form_of(const pack::GivenTensors& tensors) {
  return tensors.stacked ? Form::kStacked : Form::kPerExpert;
}

/// What one linear layer is, raw or packed: its form as the caller had it.
pack::GivenForm form_of(const LinearWeights& raw, const std::shared_ptr<const PackedWeights>& packed) {
  return packed != nullptr ? packed->impl().given() : pack::given_form(raw);
}

void add_linear(const pack::GivenForm& form, const LinearParameters& p, Quantities& q) {
  if (!form.weight.present()) return;
  q.set(p.type, form.weight.dtype);
  q.set(p.layout, form.layout);
  q.set(p.form, form_of(form.weight));
  q.set(p.k_last, form.k_last);
  q.set(p.up, given(form.up));
  q.set(p.scale_group, form.scale_group);
  if (form.scale.present()) {
    q.set(p.scale_type, form.scale.dtype);
    q.set(p.scale_form, form_of(form.scale));
  }
  q.set(p.bias, given(form.bias.present()));
  q.set(p.added_bias, given(form.added_bias.present()));
  if (form.bias.present()) q.set(p.bias_form, form_of(form.bias));
}

int64_t expert_count(const LinearWeights& raw, const std::shared_ptr<const PackedWeights>& packed) {
  if (packed != nullptr) return packed->experts();
  return pack::given_form(raw).weight.stacked ? raw.weight[0].shape[0]
                                              : static_cast<int64_t>(raw.weight.size());
}

}  // namespace

Quantities quantities_of(const BufferConfig& config, int64_t ranks) {
  Quantities q;
  q.set(kEpWorldSize, ranks);
  q.set(kNumExperts, config.num_experts);
  q.set(kNumMaxTokens, config.num_max_tokens_per_rank);
  q.set(kNumTopk, config.num_topk);
  q.set(kHidden, config.hidden);
  if (config.intermediate_hidden != 0) q.set(kIntermediateHidden, config.intermediate_hidden);
  q.set(kDispatchQuantMode, config.dispatch_quant_mode);
  q.set(kDispatchQuantOutDtype, config.dispatch_quant_out_dtype);
  q.set(kCombineQuantMode, config.combine_quant_mode);
  q.set(kTopkWeightsType, config.topk_weights_type);
  q.set(kTopoType, config.topo_type);
  q.set(kRankNumPerServer, config.rank_num_per_server);
  q.set(kCombineCommMode, config.combine_comm_mode);
  q.set(kMaxRecvTokenNum, config.max_recv_token_num);
  if (ranks < 1 || config.num_experts < 1 || config.num_topk < 1 || config.num_max_tokens_per_rank < 1)
    return q;
  const int64_t each = experts_per_rank(config, ranks);
  q.set(kExpertsPerRank, each);
  constexpr int64_t kMergedSlots = 4608;
  q.set(kMostMergedTokens, 128 * std::min<int64_t>(512, kMergedSlots / config.num_topk));
  // Rows that do not fit into 64 bits are refused with the capacity.
  int64_t most = 0;
  if (__builtin_mul_overflow(config.num_max_tokens_per_rank, ranks, &most) ||
      __builtin_mul_overflow(most, std::min(config.num_topk, each), &most)) {
    return q;
  }
  q.set(kMostRows, most);
  q.set(kReceivedRows, config.max_recv_token_num == 0 ? most : config.max_recv_token_num);
  return q;
}

void add_layer(const Layer& layer, const ActivationPlan& activation, DType token_codes, Quantities& q) {
  q.set(kActivation, activation.kind);
  const std::optional<double>& clamp = layer.activation.clamp;
  if (clamp) {  // a number >= 0, or -0: the plan of the activation has checked it
    q.set(kActivationClamp, std::bit_cast<uint32_t>(std::abs(static_cast<float>(*clamp))));
  } else {
    q.set(kActivationClamp, ClampValue::kNone);
  }
  q.set(kActivationBeta, given(layer.activation.beta.has_value()));
  const pack::GivenForm form1 = form_of(layer.weight1, layer.packed1);
  add_linear(form1, kWeight1, q);
  add_linear(form_of(layer.weight2, layer.packed2), kWeight2, q);
  q.set(kWeight1Interleave, form1.interleave);
  q.set(kSharedExperts, expert_count(layer.shared_weight1, layer.shared_packed1));
  const DType out = layer.shared_expert_quant_out_dtype;
  const bool none = q[kSharedExperts] == 0;
  // Of one linear layer without the other the plan says which is missing.
  if (!none || !form_of(layer.shared_weight2, layer.shared_packed2).weight.present()) {
    q.set(kSharedQuantOutDtype, out);
  }
  if (none) return;
  q.set(kSharedCodes, out == DType::kUndefined ? token_codes : out);
  const pack::GivenForm shared1 = form_of(layer.shared_weight1, layer.shared_packed1);
  add_linear(shared1, kSharedWeight1, q);
  q.set(kSharedWeight1Interleave, shared1.interleave);
  add_linear(form_of(layer.shared_weight2, layer.shared_packed2), kSharedWeight2, q);
  q.set(kSharedOtherwise, q[kSharedCodes] != static_cast<int64_t>(token_codes) ||
                              (q.knows(kWeight1Type) && q[kSharedWeight1Type] != q[kWeight1Type]));
}

Quantities quantities_of(const CallArgs& args) {
  Quantities q;
  if (args.x.dims == 2) q.set(kTokens, args.x.shape[0]);
  if (args.y.present()) q.set(kYType, args.y.dtype);
  q.set(kXActiveMask, given(args.x_active_mask.present()));
  const std::pair<Parameter, const TensorView&> typed[] = {{kXType, args.x},
                                                           {kTopkIdsType, args.topk_ids},
                                                           {kTopkWeightsTensorType, args.topk_weights},
                                                           {kXActiveMaskType, args.x_active_mask}};
  for (const auto& [parameter, tensor] : typed) {
    if (tensor.present()) q.set(parameter, tensor.dtype);
  }
  return q;
}

}  // namespace megamoe::moe
