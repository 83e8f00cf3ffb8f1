// Argument checks of mega_moe.
#include "reference/problem.h"

#include <algorithm>
#include <limits>
#include <string>

#include "reference/element.h"
#include "reference/linear.h"
#include "reference/scenario.h"

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

// Settings of few values.
Status check_one_of(const char* name, int value, std::initializer_list<int> choices,
                    const std::string& when = "") {
  std::string expected;
  size_t left = choices.size();
  for (int choice : choices) {
    if (value == choice) return Status::ok();
    expected += (expected.empty() ? "" : left == 1 ? " or " : ", ") + std::to_string(choice);
    --left;
  }
  return invalid(std::string(name) + " = " + std::to_string(value), expected + when);
}

constexpr int kEachSlotAlone = 0;
constexpr int kMergeRanks = 1;
constexpr int kMergeDomains = 2;

// How rows come back. The ways to merge rows of a token each belong to one kind of topology.
Status check_combine(const BufferConfig& config, int64_t ranks) {
  MEGAMOE_RETURN_IF_ERROR(check_one_of("combine_quant_mode", config.combine_quant_mode, {0, 3, 4}));
  MEGAMOE_RETURN_IF_ERROR(check_one_of("topk_weights_type", config.topk_weights_type, {0, 1}));
  MEGAMOE_RETURN_IF_ERROR(check_one_of("topo_type", config.topo_type, {0, 1, 2}));
  const int mode = config.combine_comm_mode;
  MEGAMOE_RETURN_IF_ERROR(
      check_one_of("combine_comm_mode", mode, {kEachSlotAlone, kMergeRanks, kMergeDomains}));
  const int servers = config.rank_num_per_server;
  if (config.topo_type != 0 && (servers < 1 || ranks % servers != 0)) {
    return invalid("rank_num_per_server = " + std::to_string(servers),
                   "a divisor of the " + std::to_string(ranks) + " ranks");
  }
  if (mode == kEachSlotAlone) return Status::ok();
  const std::string when = " with combine_comm_mode " + std::to_string(mode);
  MEGAMOE_RETURN_IF_ERROR(check_one_of("combine_quant_mode", config.combine_quant_mode, {0}, when));
  if (mode == kMergeRanks) return check_one_of("topo_type", config.topo_type, {0}, when);
  return check_one_of("topo_type", config.topo_type, {1, 2}, when);
}

Status check_config(const BufferConfig& config, int64_t ranks) {
  if (ranks == 0) return invalid("ranks = 0", "at least 1 rank");
  MEGAMOE_RETURN_IF_ERROR(check_extent("num_experts", config.num_experts));
  MEGAMOE_RETURN_IF_ERROR(check_extent("num_topk", config.num_topk));
  MEGAMOE_RETURN_IF_ERROR(check_extent("hidden", config.hidden));
  MEGAMOE_RETURN_IF_ERROR(check_extent("intermediate_hidden", config.intermediate_hidden));
  MEGAMOE_RETURN_IF_ERROR(check_not_negative("num_max_tokens_per_rank", config.num_max_tokens_per_rank));
  MEGAMOE_RETURN_IF_ERROR(check_not_negative("max_recv_token_num", config.max_recv_token_num));
  if (!config.comm_alg.empty()) return invalid("comm_alg = \"" + config.comm_alg + "\"", "\"\"");
  return check_combine(config, ranks);
}

// The weights choose the scenario; dispatch_quant_mode and dispatch_quant_out_dtype must agree with it.
Status check_scenario(const BufferConfig& config, const std::vector<RankInput>& ranks, Problem& problem) {
  for (int64_t r = 0; r < problem.ranks; ++r) {
    if (problem.local_experts(r) == 0) continue;
    if (ranks[r].weight1.weight.empty()) return invalid("weight1 is missing", "weights of the experts");
    if (ranks[r].weight2.weight.empty()) return invalid("weight2 is missing", "weights of the experts");
  }
  const TensorView& weight = ranks[0].weight1.weight[0];
  MEGAMOE_RETURN_IF_ERROR(check_type(weight, "weight1", weight_types()));
  Result<const Scenario*> scenario =
      routed_scenario(config, weight_form(weight_codes(weight.dtype), ranks[0].weight1.scale_group));
  if (!scenario) return scenario.status();
  problem.scenario = *scenario;
  problem.coded_x = problem.scenario->scaling == Scaling::kMx && config.dispatch_quant_mode == kCodedTokens;
  return Status::ok();
}

// Both layers of the experts of one rank.
Status check_experts(const Problem& problem, const Scenario& scenario, const std::string& prefix,
                     int64_t experts, const LinearWeights& weight1, const LinearWeights& weight2) {
  MEGAMOE_RETURN_IF_ERROR(
      check_linear(weight1, scenario,
                   {prefix, 1, problem.activation.gated(), experts, problem.hidden, problem.linear1_width}));
  return check_linear(weight2, scenario,
                      {prefix, 2, false, experts, problem.activated_width, problem.hidden});
}

constexpr int64_t kMostSharedExperts = 4;

Result<SharedExperts> check_shared(const Problem& problem, const RankInput& rank) {
  SharedExperts shared;
  const std::vector<TensorView>& weight1 = rank.shared_weight1.weight;
  if (weight1.empty()) {
    if (rank.shared_weight2.weight.empty()) return shared;
    return invalid("shared_weight1 is missing", "weights of the experts of shared_weight2");
  }
  if (rank.shared_weight2.weight.empty()) {
    return invalid("shared_weight2 is missing", "weights of the experts of shared_weight1");
  }
  MEGAMOE_RETURN_IF_ERROR(check_type(weight1[0], "shared_weight1", weight_types()));
  Result<const Scenario*> scenario =
      shared_scenario(*problem.scenario, problem.coded_x, rank.shared_expert_quant_out_dtype,
                      weight_form(weight_codes(weight1[0].dtype), rank.shared_weight1.scale_group));
  if (!scenario) return scenario.status();
  shared.scenario = *scenario;
  const bool stacked = weight1.size() == 1 && weight1[0].dims == 3;
  shared.count = stacked ? weight1[0].shape[0] : static_cast<int64_t>(weight1.size());
  if (shared.count < 0 || shared.count > kMostSharedExperts) {
    return invalid("shared_weight1 has " + std::to_string(shared.count) + " experts",
                   "0 to " + std::to_string(kMostSharedExperts));
  }
  MEGAMOE_RETURN_IF_ERROR(check_experts(problem, *shared.scenario, "shared_", shared.count,
                                        rank.shared_weight1, rank.shared_weight2));
  return shared;
}

// x as numbers of 16 bits, or as codes with a scale for each group.
Status check_tokens(const Problem& problem, const CallArgs& call) {
  MEGAMOE_RETURN_IF_ERROR(check_type(call.x, "x",
                                     problem.coded_x
                                         ? std::vector<DType>{problem.scenario->token}
                                         : std::vector<DType>{DType::kBFloat16, DType::kFloat16}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(call.x, "x", {-1, problem.hidden}));
  MEGAMOE_RETURN_IF_ERROR(check_pairs(call.x, "x"));
  if (!problem.coded_x) {
    if (!call.scales.present()) return Status::ok();
    return invalid("scales is given", std::string("none for x of type ") + dtype_name(call.x.dtype));
  }
  MEGAMOE_RETURN_IF_ERROR(check_type(call.scales, "scales", {DType::kFloat8E8M0}));
  return check_tensor(call.scales, "scales", {call.x.shape[0], mx_groups(problem.hidden)});
}

Status check_call(const BufferConfig& config, const Problem& problem, int64_t local_experts,
                  const CallArgs& call) {
  MEGAMOE_RETURN_IF_ERROR(check_tokens(problem, call));
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
  MEGAMOE_RETURN_IF_ERROR(check_type(view(call.y), "y", {DType::kBFloat16, DType::kFloat16}));
  MEGAMOE_RETURN_IF_ERROR(check_tensor(view(call.y), "y", {tokens, problem.hidden}));
  if (call.expert_token_nums.present()) {
    MEGAMOE_RETURN_IF_ERROR(check_type(view(call.expert_token_nums), "expert_token_nums", {DType::kInt32}));
    MEGAMOE_RETURN_IF_ERROR(check_tensor(view(call.expert_token_nums), "expert_token_nums", {local_experts}));
  }
  return Status::ok();
}

// Tokens of one rank that take part.
std::vector<bool> read_mask(const CallArgs& call) {
  std::vector<bool> active(static_cast<size_t>(call.x.shape[0]), true);
  if (!call.x_active_mask.present()) return active;
  for (int64_t t = 0; t < call.x.shape[0]; ++t) {
    active[t] = element<uint8_t>(call.x_active_mask, offset(call.x_active_mask, t)) != 0;
  }
  return active;
}

// Expert of each slot of one rank. The ids of a masked token are not read.
Result<std::vector<int64_t>> read_slots(const BufferConfig& config, const CallArgs& call,
                                        const std::vector<bool>& active) {
  const int64_t tokens = call.x.shape[0];
  std::vector<int64_t> slots(static_cast<size_t>(tokens * config.num_topk), kUnusedSlot);
  for (int64_t t = 0; t < tokens; ++t) {
    if (!active[t]) continue;
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
  }
  return slots;
}

// Rows that one rank has room for. Without a limit of the caller that is every slot of every token, since the
// same expert may stand in several slots.
int64_t capacity(const BufferConfig& config, const Problem& problem, int64_t largest_call) {
  if (config.max_recv_token_num != 0) return config.max_recv_token_num;
  const int64_t tokens = config.num_max_tokens_per_rank != 0 ? config.num_max_tokens_per_rank : largest_call;
  int64_t rows = 0;
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
      if (expert != kUnusedSlot) ++arriving[problem.rank_of(expert)];
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

// Everything one rank brings.
Status check_rank(const BufferConfig& config, const RankInput& rank, int64_t index, Problem& problem) {
  const int64_t experts = problem.local_experts(index);
  if (experts != 0) {
    MEGAMOE_RETURN_IF_ERROR(
        check_experts(problem, *problem.scenario, "", experts, rank.weight1, rank.weight2));
  }
  Result<SharedExperts> shared = check_shared(problem, rank);
  if (!shared) return shared.status();
  problem.shared.push_back(*shared);
  MEGAMOE_RETURN_IF_ERROR(check_call(config, problem, experts, rank.call));
  problem.active.push_back(read_mask(rank.call));
  Result<std::vector<int64_t>> slots = read_slots(config, rank.call, problem.active.back());
  if (!slots) return slots.status();
  problem.expert_of_slot.push_back(std::move(slots).value());
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
  problem.experts = config.num_experts;
  problem.experts_per_rank = (config.num_experts + problem.ranks - 1) / problem.ranks;
  problem.topk = config.num_topk;
  problem.hidden = config.hidden;
  problem.linear1_width = 2 * config.intermediate_hidden;
  problem.activated_width = rule->gated() ? config.intermediate_hidden : problem.linear1_width;
  problem.early_weights = config.topk_weights_type == 1;
  problem.combine_type = config.combine_quant_mode == 3   ? DType::kFloat8E5M2
                         : config.combine_quant_mode == 4 ? DType::kFloat8E4M3
                                                          : DType::kUndefined;
  problem.merging_ranks = config.combine_comm_mode == kMergeRanks     ? 1
                          : config.combine_comm_mode == kMergeDomains ? config.rank_num_per_server
                                                                      : 0;
  MEGAMOE_RETURN_IF_ERROR(check_scenario(config, ranks, problem));

  for (int64_t r = 0; r < problem.ranks; ++r) {
    Status status = check_rank(config, ranks[r], r, problem);
    if (status.is_ok()) continue;
    // An error of one rank among several says whose it is.
    return problem.ranks == 1 ? status
                              : Status(status.code(), "rank " + std::to_string(r) + ": " + status.message());
  }
  MEGAMOE_RETURN_IF_ERROR(check_capacity(config, problem));
  return problem;
}

}  // namespace megamoe::reference
