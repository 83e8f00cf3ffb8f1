// Gradients of moe_token_unpermute.
#include <cstring>
#include <vector>

#include "megamoe/routing.h"
#include "route/check.h"
#include "route/guard.h"
#include "route/row_access.h"
#include "route/slot_sums.h"
#include "route/unpermute_plan.h"

namespace megamoe {
namespace route {
namespace {

struct GradPlan {
  UnpermutePlan shape;
  MoeTokenUnpermuteGradOutputs outputs;  ///< without memory
};

Result<GradPlan> plan_grad(const MoeTokenUnpermuteGradArgs& args) {
  auto shape = UnpermutePlan::create(args.permuted_tokens, args.sorted_indices, args.probs, args.padded_mode);
  if (!shape) return shape.status();
  GradPlan plan{*shape, {}};
  if (args.sorted_indices.shape[0] > kMostSlots) {
    return Status(Code::kInvalidArgument, "sorted_indices has shape " + args.sorted_indices.shape_text() +
                                              ": expected at most " + std::to_string(kMostSlots) + " slots");
  }
  MEGAMOE_RETURN_IF_ERROR(
      check_type(args.grad_unpermuted_tokens, "grad_unpermuted_tokens", {args.permuted_tokens.dtype}));
  MEGAMOE_RETURN_IF_ERROR(
      check_shape(args.grad_unpermuted_tokens, "grad_unpermuted_tokens", {shape->tokens, shape->hidden}));
  auto permuted = describe_output("permuted_grad", args.permuted_tokens.dtype, {shape->rows, shape->hidden});
  if (!permuted) return permuted.status();
  plan.outputs.permuted_grad = *permuted;
  if (args.probs.present()) {
    auto probs = describe_output("probs_grad", args.probs.dtype, {shape->tokens, shape->topk});
    if (!probs) return probs.status();
    plan.outputs.probs_grad = *probs;
  }
  return plan;
}

/// Slot that each row belongs to, -1 for none.
Result<std::vector<int32_t>> slots_of_rows(const IdView& index, int64_t rows) {
  std::vector<int32_t> slots(static_cast<size_t>(rows), -1);
  for (int64_t slot = 0; slot < index.count(); ++slot) {
    const int64_t row = index.at(slot);
    if (row < 0 || row >= rows) continue;
    if (slots[row] >= 0) {
      return wrong_value(
          element_name("sorted_indices", 1, slot, 0), row,
          "every row at most once, sorted_indices[" + std::to_string(slots[row]) + "] is the same");
    }
    slots[row] = static_cast<int32_t>(slot);
  }
  return slots;
}

void write_permuted_grad(const MoeTokenUnpermuteGradArgs& args, const UnpermutePlan& plan,
                         const std::vector<int32_t>& slots, const TensorRef& out, Workers& workers) {
  if (plan.hidden == 0) return;
  const int64_t bytes = bytes_of(out.dtype, plan.hidden);
  const int parts = workers.parts(plan.rows, token_grain(bytes, 2));
  std::vector<RowReader> readers(static_cast<size_t>(parts), RowReader(args.grad_unpermuted_tokens));
  const auto multiply = workers.ops().sum_rows[static_cast<int>(row_type(out.dtype))];
  workers.run(parts, [&](int part) {
    const int64_t end = Workers::begin(plan.rows, parts, part + 1);
    for (int64_t row = Workers::begin(plan.rows, parts, part); row < end; ++row) {
      std::byte* const to = static_cast<std::byte*>(out.data) + row * bytes;
      const int64_t slot = slots[row];
      if (slot < 0) {
        std::memset(to, 0, static_cast<size_t>(bytes));
        continue;
      }
      const int64_t token = slot / plan.topk;
      const void* const grad = readers[part].row(token);
      if (!args.probs.present()) {
        std::memcpy(to, grad, static_cast<size_t>(bytes));
        continue;
      }
      const float prob =
          read_real(args.probs, token * args.probs.strides[0] + slot % plan.topk * args.probs.strides[1]);
      multiply(
          {.rows = &grad, .weights = &prob, .count = 1, .from_zero = false, .n = plan.hidden, .out = to});
    }
  });
}

void write_probs_grad(const MoeTokenUnpermuteGradArgs& args, const UnpermutePlan& plan, const IdView& index,
                      const TensorRef& out, Workers& workers) {
  const int parts = workers.parts(
      plan.tokens, token_grain(bytes_of(args.permuted_tokens.dtype, plan.hidden), plan.topk + 1));
  std::vector<RowReader> grads(static_cast<size_t>(parts), RowReader(args.grad_unpermuted_tokens));
  std::vector<RowReader> rows(static_cast<size_t>(parts), RowReader(args.permuted_tokens));
  const auto dot = workers.ops().dot[static_cast<int>(row_type(args.permuted_tokens.dtype))];
  workers.run(parts, [&](int part) {
    const int64_t end = Workers::begin(plan.tokens, parts, part + 1);
    for (int64_t token = Workers::begin(plan.tokens, parts, part); token < end; ++token) {
      const void* const grad = grads[part].row(token);
      for (int64_t slot = token * plan.topk; slot < (token + 1) * plan.topk; ++slot) {
        const int64_t row = index.at(slot);
        const bool used = row >= 0 && row < plan.rows;
        write_real(out, slot, used ? dot(grad, rows[part].row(row), plan.hidden) : 0.0f);
      }
    }
  });
}

Status run(const MoeTokenUnpermuteGradArgs& args, const MoeTokenUnpermuteGradOutputs& outputs,
           const RoutingOptions& options) {
  auto plan = plan_grad(args);
  if (!plan) return plan.status();
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.permuted_tokens, "permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.grad_unpermuted_tokens, "grad_unpermuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.sorted_indices, "sorted_indices"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.probs, "probs"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.permuted_grad, plan->outputs.permuted_grad, "permuted_grad"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.probs_grad, plan->outputs.probs_grad, "probs_grad"));
  auto workers = Workers::create(options);
  if (!workers) return workers.status();
  const IdView index(args.sorted_indices);
  auto slots = slots_of_rows(index, plan->shape.rows);
  if (!slots) return slots.status();
  write_permuted_grad(args, plan->shape, *slots, outputs.permuted_grad, *workers);
  if (args.probs.present()) write_probs_grad(args, plan->shape, index, outputs.probs_grad, *workers);
  return Status::ok();
}

}  // namespace
}  // namespace route

Result<MoeTokenUnpermuteGradOutputs> moe_token_unpermute_grad_outputs(const MoeTokenUnpermuteGradArgs& args) {
  auto plan = route::plan_grad(args);
  if (!plan) return plan.status();
  return plan->outputs;
}

Status moe_token_unpermute_grad(const MoeTokenUnpermuteGradArgs& args,
                                const MoeTokenUnpermuteGradOutputs& outputs, const RoutingOptions& options) {
  return route::guarded("moe_token_unpermute_grad", [&] { return route::run(args, outputs, options); });
}

}  // namespace megamoe
