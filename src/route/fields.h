// The arguments and outputs of the routing operators by name: one list for all who fill them from files or
// other languages.
#pragma once

#include "megamoe/routing.h"

namespace megamoe::route {

// visit(name, field) for every argument, in the order of the operator documents.

template <class Visit>
void visit_arguments(MoeInitRoutingArgs& args, Visit&& visit) {
  visit("x", args.x);
  visit("expert_idx", args.expert_idx);
  visit("scale", args.scale);
  visit("offset", args.offset);
  visit("active_num", args.active_num);
  visit("expert_capacity", args.expert_capacity);
  visit("expert_num", args.expert_num);
  visit("drop_pad_mode", args.drop_pad_mode);
  visit("expert_tokens_num_type", args.expert_tokens_num_type);
  visit("expert_tokens_num_flag", args.expert_tokens_num_flag);
  visit("quant_mode", args.quant_mode);
  visit("active_expert_range", args.active_expert_range);
  visit("row_idx_type", args.row_idx_type);
  visit("mx_scale", args.mx_scale);
}

template <class Visit>
void visit_arguments(MoeTokenPermuteArgs& args, Visit&& visit) {
  visit("tokens", args.tokens);
  visit("indices", args.indices);
  visit("num_out_tokens", args.num_out_tokens);
  visit("padded_mode", args.padded_mode);
  visit("quant_mode", args.quant_mode);
  visit("mx_scale", args.mx_scale);
}

template <class Visit>
void visit_arguments(MoeTokenPermuteGradArgs& args, Visit&& visit) {
  visit("grad_permuted_tokens", args.grad_permuted_tokens);
  visit("sorted_indices", args.sorted_indices);
  visit("num_topk", args.num_topk);
  visit("padded_mode", args.padded_mode);
}

template <class Visit>
void visit_arguments(MoeTokenUnpermuteArgs& args, Visit&& visit) {
  visit("permuted_tokens", args.permuted_tokens);
  visit("sorted_indices", args.sorted_indices);
  visit("probs", args.probs);
  visit("padded_mode", args.padded_mode);
}

template <class Visit>
void visit_arguments(MoeTokenUnpermuteGradArgs& args, Visit&& visit) {
  visit("permuted_tokens", args.permuted_tokens);
  visit("grad_unpermuted_tokens", args.grad_unpermuted_tokens);
  visit("sorted_indices", args.sorted_indices);
  visit("probs", args.probs);
  visit("padded_mode", args.padded_mode);
}

template <class Visit>
void visit_arguments(MoeGatingTopKArgs& args, Visit&& visit) {
  visit("logits", args.logits);
  visit("bias", args.bias);
  visit("k", args.k);
  visit("scoring", args.scoring);
  visit("n_group", args.n_group);
  visit("topk_group", args.topk_group);
  visit("renormalize", args.renormalize);
  visit("routed_scaling_factor", args.routed_scaling_factor);
  visit("group_score", args.group_score);
}

// visit(name, tensor) for every output, in the order in which Python returns them.

template <class Visit>
void visit_outputs(MoeInitRoutingOutputs& outputs, Visit&& visit) {
  visit("expanded_x", outputs.expanded_x);
  visit("expanded_row_idx", outputs.expanded_row_idx);
  visit("expert_tokens_count_or_cumsum", outputs.expert_tokens_count_or_cumsum);
  visit("expanded_scale", outputs.expanded_scale);
}

template <class Visit>
void visit_outputs(MoeTokenPermuteOutputs& outputs, Visit&& visit) {
  visit("permuted_tokens", outputs.permuted_tokens);
  visit("sorted_indices", outputs.sorted_indices);
  visit("expanded_scale", outputs.expanded_scale);
}

template <class Visit>
void visit_outputs(MoeTokenPermuteGradOutputs& outputs, Visit&& visit) {
  visit("grad_tokens", outputs.grad_tokens);
}

template <class Visit>
void visit_outputs(MoeTokenUnpermuteOutputs& outputs, Visit&& visit) {
  visit("out", outputs.out);
}

template <class Visit>
void visit_outputs(MoeTokenUnpermuteGradOutputs& outputs, Visit&& visit) {
  visit("permuted_grad", outputs.permuted_grad);
  visit("probs_grad", outputs.probs_grad);
}

template <class Visit>
void visit_outputs(MoeGatingTopKOutputs& outputs, Visit&& visit) {
  visit("weights", outputs.weights);
  visit("ids", outputs.ids);
}

/// An operator with the function that describes its outputs.
template <class Args, class Outputs>
struct Operator {
  const char* name;
  Result<Outputs> (*outputs)(const Args&);
  Status (*run)(const Args&, const Outputs&, const RoutingOptions&);
};

/// visit(Operator) for every routing operator.
template <class Visit>
void visit_operators(Visit&& visit) {
  visit(Operator<MoeInitRoutingArgs, MoeInitRoutingOutputs>{
      "moe_init_routing_v3", moe_init_routing_v3_outputs, moe_init_routing_v3});
  visit(Operator<MoeTokenPermuteArgs, MoeTokenPermuteOutputs>{"moe_token_permute", moe_token_permute_outputs,
                                                              moe_token_permute});
  visit(Operator<MoeTokenPermuteGradArgs, MoeTokenPermuteGradOutputs>{
      "moe_token_permute_grad", moe_token_permute_grad_outputs, moe_token_permute_grad});
  visit(Operator<MoeTokenUnpermuteArgs, MoeTokenUnpermuteOutputs>{
      "moe_token_unpermute", moe_token_unpermute_outputs, moe_token_unpermute});
  visit(Operator<MoeTokenUnpermuteGradArgs, MoeTokenUnpermuteGradOutputs>{
      "moe_token_unpermute_grad", moe_token_unpermute_grad_outputs, moe_token_unpermute_grad});
  visit(Operator<MoeGatingTopKArgs, MoeGatingTopKOutputs>{"moe_gating_top_k", moe_gating_top_k_outputs,
                                                          moe_gating_top_k});
}

}  // namespace megamoe::route
