// A checked call of mega_moe: sizes, rules and the slots that take part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "megamoe/reference.h"
#include "reference/activation.h"
#include "reference/scenario.h"

namespace megamoe::reference {

inline constexpr int64_t kUnusedSlot = -1;

/// Experts that every token of one rank passes through.
struct SharedExperts {
  int64_t count = 0;
  const Scenario* scenario = nullptr;  ///< null without any
};

struct Problem {
  int64_t ranks = 0;
  int64_t experts = 0;
  int64_t experts_per_rank = 0;  ///< of all ranks but the last ones, which may have fewer
  int64_t topk = 0;
  int64_t hidden = 0;
  int64_t linear1_width = 0;    ///< 2I
  int64_t activated_width = 0;  ///< I, or 2I where the activation has no gate
  const Scenario* scenario = nullptr;
  bool coded_x = false;                    ///< x holds codes, with scales
  bool early_weights = false;              ///< router weights apply before requantisation
  DType combine_type = DType::kUndefined;  ///< codes in which expert rows come back, undefined = bfloat16
  int64_t merging_ranks = 0;               ///< this many neighbouring ranks merge their rows of a token
  ActivationRule activation;
  std::vector<SharedExperts> shared;      ///< [rank]
  std::vector<std::vector<bool>> active;  ///< [rank][token], false where x_active_mask is 0
  std::vector<std::vector<int64_t>>
      expert_of_slot;  ///< [rank][token * topk + slot], kUnusedSlot where none counts

  int64_t rank_of(int64_t expert) const { return expert / experts_per_rank; }
  int64_t local_experts(int64_t rank) const {
    return std::clamp<int64_t>(experts - rank * experts_per_rank, 0, experts_per_rank);
  }
};

/// Checks every argument of every rank. Nothing has been written when it fails.
Result<Problem> check_problem(const BufferConfig& config, const Activation& activation,
                              const std::vector<RankInput>& ranks);

}  // namespace megamoe::reference
