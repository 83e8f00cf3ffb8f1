// Argument checks; every message names the argument, what came and what was expected.
#include "moe/validate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "base/memory.h"
#include "base/quoted.h"
#include "base/strides.h"
#include "moe/limits.h"
#include "moe/overlap.h"
#include "moe/quantities.h"
#include "moe/scenarios.h"

namespace megamoe::moe {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

using activation::ActivationInfo;
using activation::kActivations;

Status check_parameter(const ActivationInfo& info, const char* name,
                       activation::ActivationParameter parameter, const std::optional<double>& value) {
  if (!value) return Status::ok();
  if (!info.takes(parameter)) {
    return Status(Code::kInvalidArgument, std::string("activation_params.") + name + " = " + number(*value) +
                                              ": expected none for activation " + info.name);
  }
  if (!std::isfinite(static_cast<float>(*value))) {  // as the activation takes it
    return Status(Code::kInvalidArgument, std::string("activation_params.") + name + " = " + number(*value) +
                                              ": expected a finite number");
  }
  return Status::ok();
}

Status expect_shape(const char* name, const auto& tensor, std::initializer_list<int64_t> shape) {
  bool same = tensor.dims == static_cast<int>(shape.size());
  for (int i = 0; same && i < tensor.dims; ++i) same = tensor.shape[i] == shape.begin()[i];
  if (same) return Status::ok();
  std::string expected = "(";
  for (auto it = shape.begin(); it != shape.end(); ++it) {
    expected += (it == shape.begin() ? "" : ", ") + std::to_string(*it);
  }
  expected += shape.size() == 1 ? ",)" : ")";
  return Status(Code::kInvalidArgument,
                std::string(name) + " has shape " + tensor.shape_text() + ": expected " + expected);
}

Status expect_type(const char* name, const auto& tensor, std::initializer_list<DType> types) {
  std::string expected;
  for (DType type : types) {
    if (tensor.dtype == type) {
      if (tensor.layout == Layout::kNd) return Status::ok();
      return Status(Code::kInvalidArgument,
                    std::string(name) + " has layout " + layout_name(tensor.layout) + ": expected ND");
    }
    expected += (expected.empty() ? "" : " or ") + std::string(dtype_name(type));
  }
  if (!tensor.present()) {
    return Status(Code::kInvalidArgument, std::string(name) + " is missing: expected " + expected);
  }
  return Status(Code::kInvalidType,
                std::string(name) + " has type " + dtype_name(tensor.dtype) + ": expected " + expected);
}

Status expect_data(const char* name, const TensorView& tensor) {
  if (tensor.data == nullptr && tensor.elements() != 0) {
    return Status(Code::kInvalidArgument, std::string(name) + " has no data: expected " +
                                              std::to_string(tensor.elements()) + " elements");
  }
  return base::check_strides(tensor, name);
}

Status expect_apart(const char* name, const TensorView& tensor) {
  const bool overlap = tensor.dims == 1 ? tensor.shape[0] > 1 && tensor.strides[0] == 0  //
                                        : elements_overlap(tensor);
  if (!overlap) return Status::ok();
  return Status(Code::kInvalidArgument, std::string(name) + " has strides " + base::strides_text(tensor) +
                                            ": expected elements that do not overlap");
}

}  // namespace

int64_t experts_per_rank(const BufferConfig& config, int64_t ranks) {
  return (config.num_experts + ranks - 1) / ranks;
}

int64_t local_experts(const BufferConfig& config, int64_t ranks, int64_t rank) {
  const int64_t each = experts_per_rank(config, ranks);
  return std::clamp<int64_t>(config.num_experts - rank * each, 0, each);
}

Result<int64_t> capacity(const BufferConfig& config, int64_t ranks) {
  int64_t most = 0;
  // Where the same expert may stand in several slots of a token, all of them can go to one rank.
  const bool repeated = allows(*find_profile(config.profile), Parameter::kRepeatedExperts);
  const int64_t slots =
      repeated ? config.num_topk : std::min(config.num_topk, experts_per_rank(config, ranks));
  if (__builtin_mul_overflow(config.num_max_tokens_per_rank, ranks, &most) ||
      __builtin_mul_overflow(most, slots, &most)) {
    return Status(Code::kInvalidArgument,
                  "num_max_tokens_per_rank = " + std::to_string(config.num_max_tokens_per_rank) + " x " +
                      std::to_string(ranks) + " ranks x " + std::to_string(slots) +
                      " slots: expected rows below 2^63");
  }
  if (config.max_recv_token_num != 0) most = std::min(most, config.max_recv_token_num);
  return most;
}

Status check_config(const BufferConfig& config, int64_t ranks) {
  Result<Profile> profile = find_profile(config.profile);
  if (!profile) return profile.status();
  MEGAMOE_RETURN_IF_ERROR(check_limits(*profile, LimitStage::kConfig, quantities_of(config, ranks)));
  if (Result<int64_t> rows = capacity(config, ranks); !rows) return rows.status();
  Result<const Codec*> codec = find_token_codec(config.dispatch_quant_mode, config.dispatch_quant_out_dtype);
  if (!codec) return codec.status();
  if (!config.comm_alg.empty()) {
    return Status(Code::kInvalidArgument, "comm_alg = " + base::quoted(config.comm_alg) + ": expected \"\"");
  }
  return check_code_rows(**codec, config.hidden, "dispatch_quant_out_dtype");
}

Status check_code_rows(const Codec& codec, int64_t hidden, const char* name) {
  if (codec.codes() != DType::kFloat4E2M1 || hidden % 2 == 0) return Status::ok();
  return Status(Code::kInvalidArgument, "hidden = " + std::to_string(hidden) +
                                            ": expected an even number with " + name + " float4_e2m1");
}

Result<ActivationPlan> plan_activation(const Activation& given) {
  const auto* info = std::find_if(std::begin(kActivations), std::end(kActivations),
                                  [&](const ActivationInfo& row) { return given.name == row.name; });
  if (info == std::end(kActivations)) {
    std::string names;
    for (const ActivationInfo& row : kActivations)
      names += (names.empty() ? "" : ", ") + std::string(row.name);
    return Status(Code::kInvalidArgument,
                  "activation = " + base::quoted(given.name) + ": expected one of " + names);
  }
  if (given.clamp && !(*given.clamp >= 0)) {  // catches NaN too
    return Status(Code::kInvalidArgument,
                  "activation_clamp = " + number(*given.clamp) +
                      ": expected a number >= 0 (0 = not clamped), the first of activation_params");
  }
  // Callers pass the largest float for "no clamp", also to activations that have none.
  const bool clamps = given.clamp && *given.clamp > 0 && *given.clamp < 3.4028234e38;
  if (clamps && !info->takes(activation::kTakesClamp)) {
    return Status(Code::kInvalidArgument, "activation_clamp = " + number(*given.clamp) +
                                              ": expected none, 0 or the largest float32 for activation " +
                                              given.name);
  }
  MEGAMOE_RETURN_IF_ERROR(check_parameter(*info, "alpha", activation::kTakesAlpha, given.alpha));
  MEGAMOE_RETURN_IF_ERROR(check_parameter(*info, "beta", activation::kTakesBeta, given.beta));
  MEGAMOE_RETURN_IF_ERROR(
      check_parameter(*info, "linear_beta", activation::kTakesLinearBeta, given.linear_beta));
  ActivationPlan plan;
  plan.kind = info->kind;
  plan.gated = info->gated;
  if (clamps) plan.params.clamp = static_cast<float>(*given.clamp);
  if (given.alpha) plan.params.alpha = static_cast<float>(*given.alpha);
  if (given.beta) plan.params.beta = static_cast<float>(*given.beta);
  if (given.linear_beta) plan.params.linear_beta = static_cast<float>(*given.linear_beta);
  if (info->kind == kernel::ActivationKind::kSituGlu) {
    if (!(plan.params.beta > 0)) {
      return Status(Code::kInvalidArgument, "activation_params.beta = " + number(plan.params.beta) +
                                                ": expected a number > 0 for activation situglu");
    }
    if (given.linear_beta && !(plan.params.linear_beta > 0)) {
      return Status(Code::kInvalidArgument,
                    "activation_params.linear_beta = " + number(plan.params.linear_beta) +
                        ": expected a number > 0 for activation situglu");
    }
  }
  return plan;
}

namespace {

Status check_global_bs(const CallArgs& args, int64_t ranks) {
  const int64_t least = args.x.shape[0] * ranks;
  if (args.global_bs == 0) return Status::ok();
  if (args.global_bs >= std::max(least, ranks) && args.global_bs % ranks == 0) return Status::ok();
  return Status(Code::kInvalidArgument, "global_bs = " + std::to_string(args.global_bs) +
                                            ": expected 0, or a multiple of " + std::to_string(ranks) +
                                            " (ep_world_size) from " + std::to_string(least) +
                                            " (tokens of x times ep_world_size) on");
}

/// Codes of x and their scales.
Status check_codes(const CallArgs& args, int64_t hidden) {
  const int64_t tokens = args.x.shape[0];
  if (args.x.shape[1] > 1 && args.x.strides[1] != 1) {
    return Status(Code::kInvalidArgument, "x has a step of " + std::to_string(args.x.strides[1]) +
                                              " between columns: expected codes without gaps");
  }
  if (dtype_bits(args.x.dtype) == 4 && tokens > 1 && args.x.strides[0] % 2 != 0) {
    return Status(Code::kInvalidArgument,
                  "x has a step of " + std::to_string(args.x.strides[0]) +
                      " between rows: expected rows of whole bytes, two codes in each");
  }
  MEGAMOE_RETURN_IF_ERROR(expect_type("scales", args.scales, {DType::kFloat8E8M0}));
  MEGAMOE_RETURN_IF_ERROR(
      expect_shape("scales", args.scales, {tokens, base::ceil_div(hidden, kernel::kMxGroup)}));
  return expect_data("scales", args.scales);
}

Status check_tokens(const CallArgs& args, const BufferConfig& config, Profile profile) {
  const bool codes = passes_codes_through(config.dispatch_quant_mode, config.dispatch_quant_out_dtype);
  MEGAMOE_RETURN_IF_ERROR(codes ? expect_type("x", args.x, {config.dispatch_quant_out_dtype})
                          : allows(profile, Parameter::kXType, DType::kFloat16)
                              ? expect_type("x", args.x, {DType::kBFloat16, DType::kFloat16})
                              : expect_type("x", args.x, {DType::kBFloat16}));
  if (args.x.dims != 2 || args.x.shape[0] < 0 || args.x.shape[1] != config.hidden) {
    return Status(Code::kInvalidArgument, "x has shape " + args.x.shape_text() + ": expected (T, " +
                                              std::to_string(config.hidden) + ")");
  }
  if (args.x.shape[0] > config.num_max_tokens_per_rank) {
    return Status(Code::kCapacity, "x has " + std::to_string(args.x.shape[0]) +
                                       " tokens: expected at most num_max_tokens_per_rank = " +
                                       std::to_string(config.num_max_tokens_per_rank));
  }
  MEGAMOE_RETURN_IF_ERROR(expect_data("x", args.x));
  if (codes) return check_codes(args, config.hidden);
  if (!args.scales.present()) return Status::ok();
  return Status(Code::kInvalidArgument,
                std::string("scales is given: expected none for x of type ") + dtype_name(args.x.dtype));
}

Status check_routing(const CallArgs& args, int64_t topk) {
  const int64_t tokens = args.x.shape[0];
  MEGAMOE_RETURN_IF_ERROR(expect_type("topk_ids", args.topk_ids, {DType::kInt32, DType::kInt64}));
  MEGAMOE_RETURN_IF_ERROR(expect_shape("topk_ids", args.topk_ids, {tokens, topk}));
  MEGAMOE_RETURN_IF_ERROR(expect_data("topk_ids", args.topk_ids));
  MEGAMOE_RETURN_IF_ERROR(
      expect_type("topk_weights", args.topk_weights, {DType::kFloat32, DType::kBFloat16}));
  MEGAMOE_RETURN_IF_ERROR(expect_shape("topk_weights", args.topk_weights, {tokens, topk}));
  MEGAMOE_RETURN_IF_ERROR(expect_data("topk_weights", args.topk_weights));
  if (!args.x_active_mask.present()) return Status::ok();
  MEGAMOE_RETURN_IF_ERROR(expect_type("x_active_mask", args.x_active_mask, {DType::kInt8, DType::kUInt8}));
  MEGAMOE_RETURN_IF_ERROR(expect_shape("x_active_mask", args.x_active_mask, {tokens}));
  return expect_data("x_active_mask", args.x_active_mask);
}

Status check_results(const CallArgs& args, int64_t hidden, int64_t experts_of_rank) {
  MEGAMOE_RETURN_IF_ERROR(expect_type("y", args.y, {DType::kBFloat16, DType::kFloat16}));
  MEGAMOE_RETURN_IF_ERROR(expect_shape("y", args.y, {args.x.shape[0], hidden}));
  MEGAMOE_RETURN_IF_ERROR(expect_data("y", view(args.y)));
  MEGAMOE_RETURN_IF_ERROR(expect_apart("y", view(args.y)));
  // A row of x is read before the row of y in its place is written.
  const bool in_place = args.x.data == args.y.data && args.x.strides[0] == args.y.strides[0] &&
                        dtype_bits(args.x.dtype) == dtype_bits(args.y.dtype);
  if (!in_place && rows_overlap(args.x, view(args.y))) {
    return Status(Code::kInvalidArgument, "y overlaps x: expected memory of its own, or that of x itself");
  }
  if (!args.expert_token_nums.present()) return Status::ok();
  MEGAMOE_RETURN_IF_ERROR(expect_type("expert_token_nums", args.expert_token_nums, {DType::kInt32}));
  MEGAMOE_RETURN_IF_ERROR(expect_shape("expert_token_nums", args.expert_token_nums, {experts_of_rank}));
  MEGAMOE_RETURN_IF_ERROR(expect_data("expert_token_nums", view(args.expert_token_nums)));
  return expect_apart("expert_token_nums", view(args.expert_token_nums));
}

}  // namespace

Status check_attributes(const CallArgs& args, int64_t ranks, int64_t buffer_bytes) {
  MEGAMOE_RETURN_IF_ERROR(check_global_bs(args, ranks));
  if (args.ccl_buffer_size == 0 || args.ccl_buffer_size >= buffer_bytes) return Status::ok();
  return Status(Code::kInvalidArgument, "ccl_buffer_size = " + std::to_string(args.ccl_buffer_size) +
                                            ": expected 0 (not stated) or at least " +
                                            std::to_string(buffer_bytes) + " bytes, those of the buffer");
}

Status check_call(const CallArgs& args, const BufferConfig& config, int64_t experts_of_rank) {
  const Profile profile = *find_profile(config.profile);
  MEGAMOE_RETURN_IF_ERROR(check_limits(profile, LimitStage::kCall, quantities_of(args)));
  MEGAMOE_RETURN_IF_ERROR(check_tokens(args, config, profile));
  MEGAMOE_RETURN_IF_ERROR(check_routing(args, config.num_topk));
  return check_results(args, config.hidden, experts_of_rank);
}

}  // namespace megamoe::moe
