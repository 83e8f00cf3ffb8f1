// mega_moe over all ranks: dispatch, experts, combine.
#include <algorithm>
#include <new>
#include <string>

#include "base/fp_env.h"
#include "format/bf16.h"
#include "megamoe/reference.h"
#include "reference/element.h"
#include "reference/expert.h"
#include "reference/linear.h"
#include "reference/problem.h"

namespace megamoe::reference {
namespace {

/// A slot of a token on its home rank.
struct Slot {
  int64_t rank;
  int64_t token;
  int64_t slot;
};

/// Expert rows that came back, by home rank and slot; empty where a slot is not used.
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

std::vector<float> read_token(const TensorView& x, int64_t token) {
  std::vector<float> row(static_cast<size_t>(x.shape[1]));
  for (int64_t h = 0; h < x.shape[1]; ++h) row[h] = read_real(x, offset(x, token, h));
  return row;
}

void record(const Slot& slot, const ExpertRow& row, Stages& stages) {
  const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  stages.home.insert(stages.home.end(), {slot.rank, slot.token, slot.slot});
  append(stages.token_codes, row.token_codes);
  stages.token_scales.push_back(row.token_scale);
  append(stages.linear1, row.linear1);
  append(stages.activated, row.activated);
  append(stages.requantised, row.requantised);
  stages.requantised_scales.push_back(row.requantised_scale);
  append(stages.linear2, row.linear2);
}

// All experts of one rank. `counts` gets the rows of each of its experts.
void run_rank(const Problem& problem, const std::vector<RankInput>& ranks, int64_t owner, Returned& returned,
              std::vector<int64_t>& counts, Stages* stages) {
  const RankInput& home = ranks[owner];
  for (int64_t local = 0; local < problem.experts_per_rank; ++local) {
    const std::vector<Slot> rows = rows_of_expert(problem, owner * problem.experts_per_rank + local);
    counts.push_back(static_cast<int64_t>(rows.size()));
    if (rows.empty()) continue;
    const ExpertMatrix weight1 = read_expert(home.weight1, local, problem.hidden, problem.linear1_width);
    const ExpertMatrix weight2 = read_expert(home.weight2, local, problem.activated_width, problem.hidden);
    for (const Slot& slot : rows) {
      ExpertRow row = run_expert(problem, weight1, weight2, read_token(ranks[slot.rank].call.x, slot.token));
      if (stages != nullptr) record(slot, row, *stages);
      returned[slot.rank][slot.token * problem.topk + slot.slot] = std::move(row.linear2);
    }
  }
}

// y = bf16(sum over slots in order of fl(row * weight)) in float: the first product starts the sum.
void combine(const Problem& problem, const CallArgs& call, const std::vector<std::vector<float>>& rows) {
  for (int64_t t = 0; t < call.x.shape[0]; ++t) {
    for (int64_t h = 0; h < problem.hidden; ++h) {
      float sum = 0;
      bool first = true;
      for (int64_t k = 0; k < problem.topk; ++k) {
        const std::vector<float>& row = rows[t * problem.topk + k];
        if (row.empty()) continue;
        const float product = row[h] * read_real(call.topk_weights, offset(call.topk_weights, t, k));
        sum = first ? product : sum + product;
        first = false;
      }
      element<uint16_t>(call.y, offset(call.y, t, h)) = format::bf16_from_float(sum);
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
    combine(problem, call, returned[r]);
    if (!call.expert_token_nums.present()) continue;
    for (int64_t e = 0; e < problem.experts_per_rank; ++e) {
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
