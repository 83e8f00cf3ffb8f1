// moe_token_unpermute and the gradient of moe_token_permute: rows back to their tokens, summed in slot order.
#include "megamoe/routing.h"
#include "route/check.h"
#include "route/guard.h"
#include "route/row_access.h"
#include "route/slot_sums.h"
#include "route/unpermute_plan.h"

namespace megamoe {
namespace route {
namespace {

Result<MoeTokenPermuteGradOutputs> plan_permute_grad(const MoeTokenPermuteGradArgs& args) {
  if (args.padded_mode) return wrong_value("padded_mode", "true", "false");
  MEGAMOE_RETURN_IF_ERROR(check_real(args.grad_permuted_tokens, "grad_permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_shape(args.grad_permuted_tokens, "grad_permuted_tokens", {-1, -1}));
  if (args.num_topk < 1) return wrong_value("num_topk", args.num_topk, "1 or more");
  MEGAMOE_RETURN_IF_ERROR(check_sorted_indices(args.sorted_indices, args.num_topk, "num_topk"));
  auto grad =
      describe_output("grad_tokens", args.grad_permuted_tokens.dtype,
                      {args.sorted_indices.shape[0] / args.num_topk, args.grad_permuted_tokens.shape[1]});
  if (!grad) return grad.status();
  return MoeTokenPermuteGradOutputs{*grad};
}

Status run_permute_grad(const MoeTokenPermuteGradArgs& args, const MoeTokenPermuteGradOutputs& outputs,
                        const RoutingOptions& options) {
  auto wanted = plan_permute_grad(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.grad_permuted_tokens, "grad_permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.sorted_indices, "sorted_indices"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.grad_tokens, wanted->grad_tokens, "grad_tokens"));
  auto workers = Workers::create(options);
  if (!workers) return workers.status();
  const IdView index(args.sorted_indices);
  sum_slots({args.grad_permuted_tokens, &index, args.num_topk, {}, outputs.grad_tokens}, *workers);
  return Status::ok();
}

Status run_unpermute(const MoeTokenUnpermuteArgs& args, const MoeTokenUnpermuteOutputs& outputs,
                     const RoutingOptions& options) {
  auto plan = UnpermutePlan::create(args.permuted_tokens, args.sorted_indices, args.probs, args.padded_mode);
  if (!plan) return plan.status();
  auto wanted = moe_token_unpermute_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.permuted_tokens, "permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.sorted_indices, "sorted_indices"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.probs, "probs"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.out, wanted->out, "out"));
  auto workers = Workers::create(options);
  if (!workers) return workers.status();
  const IdView index(args.sorted_indices);
  sum_slots({args.permuted_tokens, &index, plan->topk, args.probs, outputs.out}, *workers);
  return Status::ok();
}

}  // namespace

Result<UnpermutePlan> UnpermutePlan::create(const TensorView& permuted, const TensorView& indices,
                                            const TensorView& probs, bool padded_mode) {
  UnpermutePlan plan;
  if (padded_mode) return wrong_value("padded_mode", "true", "false");
  MEGAMOE_RETURN_IF_ERROR(check_real(permuted, "permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_shape(permuted, "permuted_tokens", {-1, -1}));
  plan.rows = permuted.shape[0];
  plan.hidden = permuted.shape[1];
  if (probs.present()) {
    MEGAMOE_RETURN_IF_ERROR(check_real(probs, "probs"));
    MEGAMOE_RETURN_IF_ERROR(check_shape(probs, "probs", {-1, -1}));
    plan.topk = probs.shape[1];
    if (plan.topk == 0) {
      return Status(Code::kInvalidArgument,
                    "probs has shape " + probs.shape_text() + ": expected at least 1 column");
    }
  }
  MEGAMOE_RETURN_IF_ERROR(check_sorted_indices(indices, plan.topk, "probs.shape[1]"));
  plan.tokens = indices.shape[0] / plan.topk;
  if (probs.present()) MEGAMOE_RETURN_IF_ERROR(check_shape(probs, "probs", {plan.tokens, plan.topk}));
  return plan;
}

}  // namespace route

Result<MoeTokenPermuteGradOutputs> moe_token_permute_grad_outputs(const MoeTokenPermuteGradArgs& args) {
  return route::plan_permute_grad(args);
}

Status moe_token_permute_grad(const MoeTokenPermuteGradArgs& args, const MoeTokenPermuteGradOutputs& outputs,
                              const RoutingOptions& options) {
  return route::guarded("moe_token_permute_grad",
                        [&] { return route::run_permute_grad(args, outputs, options); });
}

Result<MoeTokenUnpermuteOutputs> moe_token_unpermute_outputs(const MoeTokenUnpermuteArgs& args) {
  auto plan =
      route::UnpermutePlan::create(args.permuted_tokens, args.sorted_indices, args.probs, args.padded_mode);
  if (!plan) return plan.status();
  auto out = route::describe_output("out", args.permuted_tokens.dtype, {plan->tokens, plan->hidden});
  if (!out) return out.status();
  return MoeTokenUnpermuteOutputs{*out};
}

Status moe_token_unpermute(const MoeTokenUnpermuteArgs& args, const MoeTokenUnpermuteOutputs& outputs,
                           const RoutingOptions& options) {
  return route::guarded("moe_token_unpermute", [&] { return route::run_unpermute(args, outputs, options); });
}

}  // namespace megamoe
