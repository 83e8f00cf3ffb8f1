// Argument checks of mega_moe.
#include "reference/problem.h"

#include <algorithm>
#include <limits>
#include <string>

#include "reference/element.h"
#include "reference/linear.h"

namespace megamoe::reference {
namespace {

Status invalid(const std::string& got, const std::string& expected) {
  return Status(Code::kInvalidArgument, got + ": expected " + expected);
}

Status check_extent(const char* name, int64_t value) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  if (value >= 1 && value <= kLargest) return Status::ok();
  return invalid(std::string(name) + " = " + std::to_string(value), "1 to " + std::to_string(kLargest));
}

Status check_not_negative(const char* name, int64_t value) {
  return value >= 0 ? Status::ok() : invalid(std::string(name) + " = " + std::to_string(value), "0 or more");
}

// Settings of which only one value has a meaning in the scenarios here.
Status check_fixed(const char* name, int value, int only) {
  if (value == only) return Status::ok();
  return Status(Code::kUnsupported,
                std::string(name) + " = " + std::to_string(value) + ": expected " + std::to_string(only));
}

Status check_config(const BufferConfig& config, int64_t ranks) {
  if (ranks == 0) return invalid("ranks = 0", "at least 1 rank");
  MEGAMOE_RETURN_IF_ERROR(check_extent("num_experts", config.num_experts));
  MEGAMOE_RETURN_IF_ERROR(check_extent("num_topk", config.num_topk));
  MEGAMOE_RETURN_IF_ERROR(check_extent("hidden", config.hidden));
  MEGAMOE_RETURN_IF_ERROR(check_extent("intermediate_hidden", config.intermediate_hidden));
  MEGAMOE_RETURN_IF_ERROR(check_not_negative("num_max_tokens_per_rank", config.num_max_tokens_per_rank));
  MEGAMOE_RETURN_IF_ERROR(check_not_negative("max_recv_token_num", config.max_recv_token_num));
  if (config.num_experts % ranks != 0) {
    return invalid("num_experts = " + std::to_string(config.num_experts),
                   "a multiple of the " + std::to_string(ranks) + " ranks");
  }
  if (!config.comm_alg.empty()) return invalid("comm_alg = \"" + config.comm_alg + "\"", "\"\"");
  MEGAMOE_RETURN_IF_ERROR(check_fixed("combine_quant_mode", config.combine_quant_mode, 0));
  MEGAMOE_RETURN_IF_ERROR(check_fixed("topk_weights_type", config.topk_weights_type, 0));
  MEGAMOE_RETURN_IF_ERROR(check_fixed("topo_type", config.topo_type, 0));
  MEGAMOE_RETURN_IF_ERROR(check_fixed("combine_comm_mode", config.combine_comm_mode, 0));
  return Status::ok();
}

// The weights choose the scenario; dispatch_quant_mode and dispatch_quant_out_dtype must agree with it.
Status check_scenario(const BufferConfig& config, const std::vector<RankInput>& ranks, Problem& problem) {
  for (const RankInput& rank : ranks) {
    if (rank.weight1.weight.empty()) return invalid("weight1 is missing", "bfloat16 or int8 weights");
    if (rank.weight2.weight.empty()) return invalid("weight2 is missing", "bfloat16 or int8 weights");
  }
  const DType weight = ranks[0].weight1.weight[0].dtype;
  MEGAMOE_RETURN_IF_ERROR(
      check_type(ranks[0].weight1.weight[0], "weight1", {DType::kBFloat16, DType::kInt8}));
  problem.int8 = weight == DType::kInt8;
  for (const RankInput& rank : ranks) {
    MEGAMOE_RETURN_IF_ERROR(check_type(rank.weight1.weight[0], "weight1", {weight}));
    MEGAMOE_RETURN_IF_ERROR(check_type(rank.weight2.weight[0], "weight2", {weight}));
  }
  const int mode = problem.int8 ? 2 : 0;
  if (config.dispatch_quant_mode != mode) {
    return invalid("dispatch_quant_mode = " + std::to_string(config.dispatch_quant_mode),
                   std::to_string(mode) + " for " + dtype_name(weight) + " weights");
  }
  const DType out = config.dispatch_quant_out_dtype;
  if (out != DType::kUndefined && out != weight) {
    return Status(Code::kInvalidType, std::string("dispatch_quant_out_dtype = ") + dtype_name(out) +
                                          ": expected undefined or " + dtype_name(weight));
  }
  return Status::ok();
}

Status check_call(const BufferConfig& config, const Problem& problem, const CallArgs& call) {
  MEGAMOE_RETURN_IF_ERROR(check_type(call.x, "x", {DType::kBFloat16}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(call.x, "x", {-1, problem.hidden}));
  const int64_t tokens = call.x.shape[0];
  if (config.num_max_tokens_per_rank != 0 && tokens > config.num_max_tokens_per_rank) {
    return Status(Code::kCapacity, "x has " + std::to_string(tokens) + " tokens: expected at most " +
                                       std::to_string(config.num_max_tokens_per_rank) +
                                       " (num_max_tokens_per_rank)");
  }
  MEGAMOE_RETURN_IF_ERROR(check_type(call.topk_ids, "topk_ids", {DType::kInt32, DType::kInt64}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(call.topk_ids, "topk_ids", {tokens, problem.topk}));
  MEGAMOE_RETURN_IF_ERROR(check_type(call.topk_weights, "topk_weights", {DType::kFloat32, DType::kBFloat16}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(call.topk_weights, "topk_weights", {tokens, problem.topk}));
  if (call.x_active_mask.present()) {
    MEGAMOE_RETURN_IF_ERROR(check_type(call.x_active_mask, "x_active_mask", {DType::kInt8, DType::kUInt8}));
    MEGAMOE_RETURN_IF_ERROR(check_tensor(call.x_active_mask, "x_active_mask", {tokens}));
  }
  MEGAMOE_RETURN_IF_ERROR(check_type(view(call.y), "y", {DType::kBFloat16}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(view(call.y), "y", {tokens, problem.hidden}));
  if (call.expert_token_nums.present()) {
    MEGAMOE_RETURN_IF_ERROR(check_type(view(call.expert_token_nums), "expert_token_nums", {DType::kInt32}));
    MEGAMOE_RETURN_IF_ERROR(
        check_tensor(view(call.expert_token_nums), "expert_token_nums", {problem.experts_per_rank}));
  }
  return Status::ok();
}

// Expert of each slot of one rank. The ids of a masked token are checked like all others, then not used.
Result<std::vector<int64_t>> read_slots(const BufferConfig& config, const CallArgs& call) {
  const int64_t tokens = call.x.shape[0];
  std::vector<int64_t> slots(static_cast<size_t>(tokens * config.num_topk), kUnusedSlot);
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t* row = slots.data() + t * config.num_topk;
    for (int64_t k = 0; k < config.num_topk; ++k) {
      const int64_t id = read_index(call.topk_ids, offset(call.topk_ids, t, k));
      const std::string at =
          "topk_ids[" + std::to_string(t) + "][" + std::to_string(k) + "] = " + std::to_string(id);
      if (id != kUnusedSlot && (id < 0 || id >= config.num_experts)) {
        return invalid(at,
                       "-1 (slot not used) or an expert in [0, " + std::to_string(config.num_experts) + ")");
      }
      if (id != kUnusedSlot && config.profile != "cpu" && std::count(row, row + k, id) != 0) {
        return invalid(at, "experts distinct within a token under profile " + config.profile);
      }
      row[k] = id;
    }
    const bool masked = call.x_active_mask.present() &&
                        element<uint8_t>(call.x_active_mask, offset(call.x_active_mask, t)) == 0;
    if (masked) std::fill(row, row + config.num_topk, kUnusedSlot);
  }
  return slots;
}

// Rows that one rank has room for.
int64_t capacity(const BufferConfig& config, const Problem& problem, int64_t largest_call) {
  if (config.max_recv_token_num != 0) return config.max_recv_token_num;
  const int64_t tokens = config.num_max_tokens_per_rank != 0 ? config.num_max_tokens_per_rank : largest_call;
  int64_t rows = 0;
  // The same expert may stand in several slots of a token, so all K may go to one rank.
  if (__builtin_mul_overflow(tokens, problem.ranks * problem.topk, &rows)) {
    return std::numeric_limits<int64_t>::max();
  }
  return rows;
}

Status check_capacity(const BufferConfig& config, const Problem& problem) {
  std::vector<int64_t> arriving(static_cast<size_t>(problem.ranks), 0);
  int64_t largest_call = 0;
  for (const std::vector<int64_t>& slots : problem.expert_of_slot) {
    largest_call = std::max(largest_call, static_cast<int64_t>(slots.size()) / problem.topk);
    for (int64_t expert : slots) {
      if (expert != kUnusedSlot) ++arriving[expert / problem.experts_per_rank];
    }
  }
  const int64_t room = capacity(config, problem, largest_call);
  for (int64_t r = 0; r < problem.ranks; ++r) {
    if (arriving[r] <= room) continue;
    return Status(Code::kCapacity, "rank " + std::to_string(r) + " receives " + std::to_string(arriving[r]) +
                                       " rows: expected at most " + std::to_string(room) +
                                       " (max_recv_token_num)");
  }
  return Status::ok();
}

}  // namespace

Result<Problem> check_problem(const BufferConfig& config, const Activation& activation,
                              const std::vector<RankInput>& ranks) {
  Problem problem;
  problem.ranks = static_cast<int64_t>(ranks.size());
  MEGAMOE_RETURN_IF_ERROR(check_config(config, problem.ranks));
  Result<ActivationRule> rule = resolve_activation(activation);
  if (!rule) return rule.status();
  problem.activation = *rule;
  problem.experts_per_rank = config.num_experts / problem.ranks;
  problem.topk = config.num_topk;
  problem.hidden = config.hidden;
  problem.linear1_width = 2 * config.intermediate_hidden;
  problem.activated_width = rule->gated() ? config.intermediate_hidden : problem.linear1_width;
  MEGAMOE_RETURN_IF_ERROR(check_scenario(config, ranks, problem));

  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankInput& rank = ranks[r];
    // An error of one rank among several says whose it is.
    const auto with_rank = [&](const Status& status) {
      return ranks.size() == 1 ? status
                               : Status(status.code(), "rank " + std::to_string(r) + ": " + status.message());
    };
    Status status = check_linear(rank.weight1, 1, problem.activation.gated(), problem.experts_per_rank,
                                 problem.hidden, problem.linear1_width);
    if (status.is_ok()) {
      status = check_linear(rank.weight2, 2, false, problem.experts_per_rank, problem.activated_width,
                            problem.hidden);
    }
    if (status.is_ok()) status = check_call(config, problem, rank.call);
    if (!status.is_ok()) return with_rank(status);
    Result<std::vector<int64_t>> slots = read_slots(config, rank.call);
    if (!slots) return with_rank(slots.status());
    problem.expert_of_slot.push_back(std::move(slots).value());
  }
  MEGAMOE_RETURN_IF_ERROR(check_capacity(config, problem));
  return problem;
}

}  // namespace megamoe::reference
