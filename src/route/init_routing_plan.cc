// Checks of moe_init_routing_v3 and the shapes of its outputs.
#include "route/init_routing_plan.h"

#include <algorithm>

#include "base/memory.h"
#include "route/check.h"
#include "route/rows.h"
#include "route/sort.h"

namespace megamoe::route {
namespace {

enum : int64_t { kCumsum = 0, kCount = 1, kKeyValue = 2 };
enum : int64_t { kGather = 0, kScatter = 1 };
constexpr int64_t kMxPair = 64;  ///< columns of two neighbouring E8M0 scales

bool takes_e8m0(DType x) {
  return x == DType::kFloat8E4M3 || x == DType::kFloat8E5M2 || x == DType::kFloat4E2M1;
}

std::string range_text(int64_t start, int64_t end) {
  return std::string("[").append(std::to_string(start)).append(", ").append(std::to_string(end)).append("]");
}

Status check_choice(const char* name, int64_t got, int64_t most, const char* expected) {
  return got >= 0 && got <= most ? Status::ok() : wrong_value(name, got, expected);
}

Status check_attributes(const MoeInitRoutingArgs& args, InitRoutingPlan& plan) {
  if (args.expert_num < 1 || args.expert_num >= kMostSlots) {
    return wrong_value("expert_num", args.expert_num, "1 to " + std::to_string(kMostSlots - 1));
  }
  MEGAMOE_RETURN_IF_ERROR(check_choice("drop_pad_mode", args.drop_pad_mode, 1, "0 or 1"));
  MEGAMOE_RETURN_IF_ERROR(check_choice("expert_tokens_num_type", args.expert_tokens_num_type, kKeyValue,
                                       "0 (cumsum), 1 (count) or 2 (key_value)"));
  MEGAMOE_RETURN_IF_ERROR(
      check_choice("row_idx_type", args.row_idx_type, kScatter, "0 (gather) or 1 (scatter)"));
  const std::vector<int64_t>& range = args.active_expert_range;
  if (!range.empty() && range.size() != 2) {
    return Status(Code::kInvalidArgument,
                  "active_expert_range has " + std::to_string(range.size()) + " elements: expected 0 or 2");
  }
  plan.start = range.empty() ? 0 : range[0];
  plan.end = range.empty() ? args.expert_num : range[1];
  if (plan.start < 0 || plan.start > plan.end || plan.end > args.expert_num) {
    return wrong_value("active_expert_range", range_text(plan.start, plan.end),
                       "0 <= start <= end <= expert_num = " + std::to_string(args.expert_num));
  }
  if (args.active_num < -1) return wrong_value("active_num", args.active_num, "-1 or more");
  if (args.expert_capacity < -1) return wrong_value("expert_capacity", args.expert_capacity, "-1 or more");
  return Status::ok();
}

Status check_drop_pad(const MoeInitRoutingArgs& args, InitRoutingPlan& plan) {
  if (args.row_idx_type != kGather) {
    return wrong_value("row_idx_type", args.row_idx_type, "0 with drop_pad_mode 1");
  }
  if (plan.start != 0 || plan.end != args.expert_num) {
    return wrong_value("active_expert_range", range_text(plan.start, plan.end),
                       range_text(0, args.expert_num) + " with drop_pad_mode 1");
  }
  // Without tokens any capacity will do: a caller's does not follow the batch down to nothing.
  const int64_t addressed = kMostSlots / args.expert_num;
  const int64_t most = plan.tokens == 0 ? addressed : std::min(plan.tokens, addressed);
  if (args.expert_capacity < 1 || args.expert_capacity > most) {
    return wrong_value("expert_capacity", args.expert_capacity,
                       "1 to " + std::to_string(most) + " with drop_pad_mode 1");
  }
  plan.capacity = args.expert_capacity;
  return Status::ok();
}

Status check_x(const MoeInitRoutingArgs& args, InitRoutingPlan& plan) {
  const TensorView& x = args.x;
  const quant::RuleInfo* const rule = plan.mode.rule;
  if (rule == nullptr) {
    MEGAMOE_RETURN_IF_ERROR(
        check_type(x, "x",
                   {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kHiFloat8,
                    DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kFloat4E2M1}));
  } else if (!rule->accepts(x.dtype)) {
    std::string types;
    for (DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      if (rule->accepts(type)) types += (types.empty() ? "" : " or ") + std::string(dtype_name(type));
    }
    if (!x.present()) return Status(Code::kInvalidArgument, "x is missing: expected " + types);
    return Status(Code::kInvalidType, std::string("x has type ") + dtype_name(x.dtype) + ": expected " +
                                          types + " with quant_mode " + std::to_string(args.quant_mode));
  }
  MEGAMOE_RETURN_IF_ERROR(check_shape(x, "x", {-1, -1}));
  plan.tokens = x.shape[0];
  plan.hidden = x.shape[1];
  if (plan.hidden == 0 && plan.tokens > 0) {
    return Status(Code::kInvalidArgument, "x has shape " + x.shape_text() + ": expected at least 1 column");
  }
  if (rule != nullptr && rule->even_columns() && plan.hidden % 2 != 0) {
    return Status(Code::kInvalidArgument, "x has shape " + x.shape_text() +
                                              ": expected an even number of columns with quant_mode " +
                                              std::to_string(args.quant_mode));
  }
  return Status::ok();
}

Status check_expert_idx(const MoeInitRoutingArgs& args, InitRoutingPlan& plan) {
  MEGAMOE_RETURN_IF_ERROR(check_type(args.expert_idx, "expert_idx", {DType::kInt32, DType::kInt64}));
  MEGAMOE_RETURN_IF_ERROR(check_shape(args.expert_idx, "expert_idx", {plan.tokens, -1}));
  plan.topk = args.expert_idx.shape[1];
  plan.slots = plan.tokens * plan.topk;
  if (plan.slots <= kMostSlots) return Status::ok();
  return Status(Code::kInvalidArgument, "expert_idx has shape " + args.expert_idx.shape_text() +
                                            ": expected at most " + std::to_string(kMostSlots) + " slots");
}

Status check_copied_scale(const MoeInitRoutingArgs& args, const InitRoutingPlan& plan) {
  if (!args.scale.present()) return Status::ok();
  if (!takes_e8m0(args.x.dtype)) {
    MEGAMOE_RETURN_IF_ERROR(check_type(args.scale, "scale", {DType::kFloat32}));
    return check_shape(args.scale, "scale", {plan.tokens});
  }
  MEGAMOE_RETURN_IF_ERROR(check_type(args.scale, "scale", {DType::kFloat32, DType::kFloat8E8M0}));
  if (args.scale.dtype == DType::kFloat32) return check_shape(args.scale, "scale", {plan.tokens});
  return check_shape(args.scale, "scale", {plan.tokens, base::ceil_div(plan.hidden, kMxPair), 2});
}

Status check_smooth(const MoeInitRoutingArgs& args, const InitRoutingPlan& plan) {
  if (!args.scale.present()) return Status::ok();
  MEGAMOE_RETURN_IF_ERROR(check_type(args.scale, "scale", {DType::kFloat32}));
  const int64_t experts = plan.end - plan.start;
  const bool one_row = args.scale.dims == 2 && args.scale.shape[0] == 1;
  const bool per_expert = plan.mode.mode->smooth == Smooth::kRowOrExperts && !one_row;
  return check_shape(args.scale, "scale", {per_expert ? experts : 1, plan.hidden});
}

Status check_scales(const MoeInitRoutingArgs& args, const InitRoutingPlan& plan) {
  using quant::RuleInfo;
  const std::string where = "with quant_mode " + std::to_string(args.quant_mode);
  const RuleInfo* const rule = plan.mode.rule;
  if (rule == nullptr) {
    MEGAMOE_RETURN_IF_ERROR(check_copied_scale(args, plan));
  } else if (rule->takes(RuleInfo::kSmooth)) {
    MEGAMOE_RETURN_IF_ERROR(check_smooth(args, plan));
  } else if (rule->takes(RuleInfo::kScale)) {
    MEGAMOE_RETURN_IF_ERROR(check_type(args.scale, "scale", {DType::kFloat32}));
    MEGAMOE_RETURN_IF_ERROR(check_shape(args.scale, "scale", {1}));
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_absent(args.scale, "scale", where));
  }
  if (rule == nullptr || !rule->takes(RuleInfo::kOffset)) return check_absent(args.offset, "offset", where);
  MEGAMOE_RETURN_IF_ERROR(check_type(args.offset, "offset", {DType::kFloat32}));
  return check_shape(args.offset, "offset", {1});
}

Result<TensorRef> describe_scale(const MoeInitRoutingArgs& args, const InitRoutingPlan& plan) {
  const char* const name = "expanded_scale";
  if (plan.mode.rule != nullptr) {
    return describe_row_scales(name, plan.mode, plan.rows, plan.hidden);
  }
  if (!args.scale.present()) return TensorRef{};
  if (args.scale.dims == 1) return describe_output(name, args.scale.dtype, {plan.rows});
  return describe_output(name, args.scale.dtype, {plan.rows, args.scale.shape[1], 2});
}

Status describe_outputs(const MoeInitRoutingArgs& args, InitRoutingPlan& plan) {
  const DType codes = plan.mode.rule != nullptr ? plan.mode.rule->codes : args.x.dtype;
  auto x = plan.capacity > 0
               ? describe_output("expanded_x", codes, {args.expert_num, plan.capacity, plan.hidden})
               : describe_output("expanded_x", codes, {plan.rows, plan.hidden});
  if (!x) return x.status();
  auto index = describe_output("expanded_row_idx", DType::kInt32, {plan.slots});
  if (!index) return index.status();
  auto scale = describe_scale(args, plan);
  if (!scale) return scale.status();
  plan.outputs = {*x, *index, {}, *scale};
  if (!args.expert_tokens_num_flag) return Status::ok();
  const char* const name = "expert_tokens_count_or_cumsum";
  auto counts = args.expert_tokens_num_type == kKeyValue
                    ? describe_output(name, DType::kInt64, {args.expert_num, 2})
                    : describe_output(name, DType::kInt64, {plan.end - plan.start});
  if (!counts) return counts.status();
  plan.outputs.expert_tokens_count_or_cumsum = *counts;
  return Status::ok();
}

}  // namespace

Result<InitRoutingPlan> InitRoutingPlan::create(const MoeInitRoutingArgs& args) {
  InitRoutingPlan plan;
  MEGAMOE_RETURN_IF_ERROR(check_attributes(args, plan));
  const bool drop_pad = args.drop_pad_mode == 1;
  auto mode = row_mode(args.quant_mode, args.mx_scale, drop_pad ? ModeUse::kDropPad : ModeUse::kDropless);
  if (!mode) return mode.status();
  plan.mode = *mode;
  MEGAMOE_RETURN_IF_ERROR(check_x(args, plan));
  MEGAMOE_RETURN_IF_ERROR(check_expert_idx(args, plan));
  if (drop_pad) MEGAMOE_RETURN_IF_ERROR(check_drop_pad(args, plan));
  MEGAMOE_RETURN_IF_ERROR(check_scales(args, plan));
  const bool all_rows = args.active_num == -1 || args.active_num == 0;
  plan.rows = drop_pad   ? args.expert_num * plan.capacity
              : all_rows ? plan.slots
                         : std::min(args.active_num, plan.slots);
  MEGAMOE_RETURN_IF_ERROR(describe_outputs(args, plan));
  return plan;
}

}  // namespace megamoe::route

namespace megamoe {

Result<MoeInitRoutingOutputs> moe_init_routing_v3_outputs(const MoeInitRoutingArgs& args) {
  auto plan = route::InitRoutingPlan::create(args);
  if (!plan) return plan.status();
  return plan->outputs;
}

}  // namespace megamoe
