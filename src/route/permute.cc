// moe_token_permute: rows in the stable order of their indices, copied or quantised.
#include <algorithm>
#include <limits>

#include "megamoe/routing.h"
#include "route/check.h"
#include "route/guard.h"
#include "route/rows.h"
#include "route/sort.h"

namespace megamoe {
namespace route {
namespace {

constexpr int64_t kLargestIndex = std::numeric_limits<int32_t>::max() - 1;

struct PermutePlan {
  int64_t topk = 0;
  RowMode mode;
  MoeTokenPermuteOutputs outputs;  ///< without memory
};

Status check_tokens(const MoeTokenPermuteArgs& args, const RowMode& mode) {
  const TensorView& tokens = args.tokens;
  if (mode.rule == nullptr) {
    MEGAMOE_RETURN_IF_ERROR(
        check_type(tokens, "tokens", {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8}));
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_type(tokens, "tokens", {DType::kFloat16, DType::kBFloat16}));
  }
  MEGAMOE_RETURN_IF_ERROR(check_shape(tokens, "tokens", {-1, -1}));
  if (tokens.shape[1] == 0 && tokens.shape[0] > 0) {
    return Status(Code::kInvalidArgument,
                  "tokens has shape " + tokens.shape_text() + ": expected at least 1 column");
  }
  if (mode.rule != nullptr && mode.rule->even_columns() && tokens.shape[1] % 2 != 0) {
    return Status(Code::kInvalidArgument, "tokens has shape " + tokens.shape_text() +
                                              ": expected an even number of columns with quant_mode " +
                                              std::to_string(args.quant_mode));
  }
  return Status::ok();
}

Result<PermutePlan> plan_permute(const MoeTokenPermuteArgs& args) {
  PermutePlan plan;
  if (args.padded_mode) return wrong_value("padded_mode", "true", "false");
  auto mode = row_mode(args.quant_mode, args.mx_scale, ModeUse::kPermute);
  if (!mode) return mode.status();
  plan.mode = *mode;
  MEGAMOE_RETURN_IF_ERROR(check_tokens(args, plan.mode));
  const int64_t tokens = args.tokens.shape[0], hidden = args.tokens.shape[1];
  const TensorView& indices = args.indices;
  MEGAMOE_RETURN_IF_ERROR(check_type(indices, "indices", {DType::kInt32, DType::kInt64}));
  if (indices.dims == 1) {
    MEGAMOE_RETURN_IF_ERROR(check_shape(indices, "indices", {tokens}));
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_shape(indices, "indices", {tokens, -1}));
  }
  plan.topk = indices.dims == 1 ? 1 : indices.shape[1];
  const int64_t slots = tokens * plan.topk;
  if (slots > kMostSlots) {
    return Status(Code::kInvalidArgument, "indices has shape " + indices.shape_text() +
                                              ": expected at most " + std::to_string(kMostSlots) + " slots");
  }
  const int64_t asked = args.num_out_tokens.value_or(0);
  const int64_t rows = asked == 0  ? slots
                       : asked > 0 ? std::min(asked, slots)
                                   : std::max<int64_t>(slots + std::max(asked, -slots), 0);
  const DType codes = plan.mode.rule != nullptr ? plan.mode.rule->codes : args.tokens.dtype;
  auto permuted = describe_output("permuted_tokens", codes, {rows, hidden});
  if (!permuted) return permuted.status();
  auto sorted = describe_output("sorted_indices", DType::kInt32, {slots});
  if (!sorted) return sorted.status();
  auto scale = plan.mode.rule != nullptr ? describe_row_scales("expanded_scale", plan.mode, rows, hidden)
                                         : describe_output("expanded_scale", DType::kFloat32, {0});
  if (!scale) return scale.status();
  plan.outputs = {*permuted, *sorted, *scale};
  return plan;
}

void write_positions(const IdView& ids, int64_t largest, int32_t* out, Workers& workers) {
  // Counting pays while there are not many more ids than slots.
  constexpr int64_t kFewIds = 1 << 14;
  if (largest >= std::max(kFewIds, ids.count())) {
    radix_positions(ids, largest, out);
  } else {
    CountingSort(ids, 0, largest + 2, workers).place({largest + 1, 0}, out, nullptr, workers);
  }
}

Status run(const MoeTokenPermuteArgs& args, const MoeTokenPermuteOutputs& outputs,
           const RoutingOptions& options) {
  auto plan = plan_permute(args);
  if (!plan) return plan.status();
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.tokens, "tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.indices, "indices"));
  MEGAMOE_RETURN_IF_ERROR(
      check_output(outputs.permuted_tokens, plan->outputs.permuted_tokens, "permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(
      check_output(outputs.sorted_indices, plan->outputs.sorted_indices, "sorted_indices"));
  MEGAMOE_RETURN_IF_ERROR(
      check_output(outputs.expanded_scale, plan->outputs.expanded_scale, "expanded_scale"));
  auto workers = Workers::create(options);
  if (!workers) return workers.status();
  const IdView ids(args.indices);
  const IdRange range = id_range(ids, *workers);
  if (range.least < 0 || range.most > kLargestIndex) {
    const IdAt wrong = first_outside(ids, 0, kLargestIndex);
    const int64_t row = wrong.slot / ids.columns(), slot = wrong.slot % ids.columns();
    return wrong_value(element_name("indices", args.indices.dims, row, slot), wrong.id,
                       "an index in [0, " + std::to_string(kLargestIndex) + "]");
  }
  auto* const sorted = static_cast<int32_t*>(outputs.sorted_indices.data);
  write_positions(ids, range.most, sorted, *workers);
  RowMove move;
  move.x = args.tokens;
  move.topk = plan->topk;
  move.to = sorted;
  move.limit = outputs.permuted_tokens.shape[0];
  move.mode = plan->mode;
  move.rows = outputs.permuted_tokens.data;
  move.scales = plan->mode.rule != nullptr ? outputs.expanded_scale.data : nullptr;
  move_rows(move, *workers);
  return Status::ok();
}

}  // namespace
}  // namespace route

Result<MoeTokenPermuteOutputs> moe_token_permute_outputs(const MoeTokenPermuteArgs& args) {
  auto plan = route::plan_permute(args);
  if (!plan) return plan.status();
  return plan->outputs;
}

Status moe_token_permute(const MoeTokenPermuteArgs& args, const MoeTokenPermuteOutputs& outputs,
                         const RoutingOptions& options) {
  return route::guarded("moe_token_permute", [&] { return route::run(args, outputs, options); });
}

}  // namespace megamoe
