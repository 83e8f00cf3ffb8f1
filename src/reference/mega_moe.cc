// mega_moe over all ranks: dispatch, experts, combine.
#include <algorithm>
#include <new>
#include <optional>
#include <string>

#include "base/fp_env.h"
#include "format/bf16.h"
#include "format/float16.h"
#include "megamoe/reference.h"
#include "reference/coded_row.h"
#include "reference/combine.h"
#include "reference/element.h"
#include "reference/expert.h"
#include "reference/linear.h"
#include "reference/number.h"
#include "reference/problem.h"

namespace megamoe::reference {
namespace {

/// A slot of a token on its home rank.
struct Slot {
  int64_t rank;
  int64_t token;
  int64_t slot;
};

/// Rows that came back, by home rank and slot; empty where a slot is not used.
using Returned = std::vector<std::vector<std::vector<float>>>;

// Rows of one expert: by source rank, then token, then slot.
std::vector<Slot> rows_of_expert(const Problem& problem, int64_t expert) {
  std::vector<Slot> rows;
  for (int64_t r = 0; r < problem.ranks; ++r) {
    const std::vector<int64_t>& slots = problem.expert_of_slot[r];
    for (int64_t f = 0; f < static_cast<int64_t>(slots.size()); ++f) {
      if (slots[f] == expert) rows.push_back({r, f / problem.topk, f % problem.topk});
    }
  }
  return rows;
}

// A token in the codes of a scenario: made from its row, or as they came with their scales.
CodedRow read_token(const Problem& problem, const CallArgs& call, int64_t token, const Scenario& scenario) {
  std::vector<float> row(static_cast<size_t>(problem.hidden));
  for (int64_t h = 0; h < problem.hidden; ++h) row[h] = read_number(call.x, offset(call.x, token, h));
  if (!problem.coded_x) return encode(scenario.scaling, scenario.token, row);
  CodedRow coded{std::move(row), {}, kMxGroup};
  for (int64_t g = 0; g < mx_groups(problem.hidden); ++g) {
    coded.scales.push_back(read_number(call.scales, offset(call.scales, token, g)));
  }
  return coded;
}

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

void record(const Slot& slot, const CodedRow& token, const ExpertRow& row, StageRows& stages) {
  stages.home.insert(stages.home.end(), {slot.rank, slot.token, slot.slot});
  append(stages.token_codes, token.codes);
  append(stages.token_scales, token.scales);
  append(stages.linear1, row.linear1);
  append(stages.activated, row.activated);
  append(stages.requantised, row.requantised.codes);
  append(stages.requantised_scales, row.requantised.scales);
  append(stages.linear2, row.linear2);
}

// Both matrices of expert `local` of a list.
struct ExpertWeights {
  ExpertMatrix first, second;

  ExpertWeights(const Problem& problem, const Scenario& scenario, const LinearWeights& weight1,
                const LinearWeights& weight2, int64_t local)
      : first(read_expert(weight1, scenario, local, problem.hidden, problem.linear1_width)),
        second(read_expert(weight2, scenario, local, problem.activated_width, problem.hidden)) {}
};

// All experts of one rank. `counts` gets the rows of each of its experts.
void run_rank(const Problem& problem, const std::vector<RankInput>& ranks, int64_t owner, Returned& returned,
              std::vector<int64_t>& counts, Stages* stages) {
  const RankInput& home = ranks[owner];
  for (int64_t local = 0; local < problem.local_experts(owner); ++local) {
    const std::vector<Slot> rows = rows_of_expert(problem, owner * problem.experts_per_rank + local);
    counts.push_back(static_cast<int64_t>(rows.size()));
    if (rows.empty()) continue;
    const ExpertWeights expert(problem, *problem.scenario, home.weight1, home.weight2, local);
    for (const Slot& slot : rows) {
      const CallArgs& call = ranks[slot.rank].call;
      const CodedRow token = read_token(problem, call, slot.token, *problem.scenario);
      std::optional<float> weight;
      if (problem.early_weights) {
        weight = read_real(call.topk_weights, offset(call.topk_weights, slot.token, slot.slot));
      }
      const ExpertRow row =
          run_expert(*problem.scenario, problem.activation, expert.first, expert.second, token, weight);
      std::vector<float>& home_row = returned[slot.rank][slot.token * problem.topk + slot.slot];
      home_row = returned_row(problem, row.linear2);
      if (stages == nullptr) continue;
      record(slot, token, row, *stages);
      append(stages->returned, home_row);
    }
  }
}

// Rows of the shared experts of one rank: [token][shared expert], none for a token that takes no part.
std::vector<std::vector<std::vector<float>>> run_shared(const Problem& problem, const RankInput& input,
                                                        int64_t rank, Stages* stages) {
  const SharedExperts& shared = problem.shared[rank];
  std::vector<std::vector<std::vector<float>>> rows(problem.active[rank].size());
  for (int64_t s = 0; s < shared.count; ++s) {
    const ExpertWeights expert(problem, *shared.scenario, input.shared_weight1, input.shared_weight2, s);
    for (size_t t = 0; t < rows.size(); ++t) {
      if (!problem.active[rank][t]) continue;
      const auto at = static_cast<int64_t>(t);
      const CodedRow token = read_token(problem, input.call, at, *shared.scenario);
      const ExpertRow row =
          run_expert(*shared.scenario, problem.activation, expert.first, expert.second, token);
      if (stages != nullptr) record({rank, at, s}, token, row, stages->shared);
      rows[t].push_back(row.linear2);
    }
  }
  return rows;
}

void combine(const Problem& problem, const RankInput& input, int64_t rank,
             const std::vector<std::vector<float>>& returned, Stages* stages) {
  const CallArgs& call = input.call;
  const auto shared = run_shared(problem, input, rank, stages);
  for (int64_t t = 0; t < call.x.shape[0]; ++t) {
    const int64_t* experts = problem.expert_of_slot[rank].data() + t * problem.topk;
    std::vector<const std::vector<float>*> rows;
    std::vector<float> weights;
    for (int64_t k = 0; k < problem.topk; ++k) {
      rows.push_back(&returned[t * problem.topk + k]);
      weights.push_back(read_real(call.topk_weights, offset(call.topk_weights, t, k)));
    }
    const std::vector<float> sums = combine_token(problem, rows, experts, weights, shared[t]);
    for (int64_t h = 0; h < problem.hidden; ++h) {
      element<uint16_t>(call.y, offset(call.y, t, h)) = call.y.dtype == DType::kFloat16
                                                            ? format::f16_from_float(sums[h])
                                                            : format::bf16_from_float(sums[h]);
    }
  }
}

Status run(const BufferConfig& config, const Activation& activation, std::vector<RankInput>& ranks,
           std::vector<Stages>* stages) {
  Result<Problem> checked = check_problem(config, activation, ranks);
  if (!checked) return checked.status();
  const Problem& problem = *checked;

  if (stages != nullptr) stages->assign(ranks.size(), Stages{});
  Returned returned;
  for (const std::vector<int64_t>& slots : problem.expert_of_slot) returned.emplace_back(slots.size());
  std::vector<std::vector<int64_t>> counts(ranks.size());
  for (int64_t r = 0; r < problem.ranks; ++r) {
    run_rank(problem, ranks, r, returned, counts[r], stages == nullptr ? nullptr : &(*stages)[r]);
  }
  for (int64_t r = 0; r < problem.ranks; ++r) {
    const CallArgs& call = ranks[r].call;
    combine(problem, ranks[r], r, returned[r], stages == nullptr ? nullptr : &(*stages)[r]);
    if (!call.expert_token_nums.present()) continue;
    for (int64_t e = 0; e < problem.local_experts(r); ++e) {
      element<int32_t>(call.expert_token_nums, offset(call.expert_token_nums, e)) =
          static_cast<int32_t>(counts[r][e]);
    }
  }
  return Status::ok();
}

}  // namespace

Status mega_moe(const BufferConfig& config, const Activation& activation, std::vector<RankInput>& ranks,
                std::vector<Stages>* stages) {
  const base::DefaultFpEnv fp_env;
  try {
    return run(config, activation, ranks, stages);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "the reference has no memory for its intermediate values");
  }
}

}  // namespace megamoe::reference
