// A checked call of mega_moe: sizes, rules and the slots that take part.
#pragma once

#include <cstdint>
#include <vector>

#include "megamoe/reference.h"
#include "reference/activation.h"

namespace megamoe::reference {

inline constexpr int64_t kUnusedSlot = -1;

struct Problem {
  int64_t ranks = 0;
  int64_t experts_per_rank = 0;
  int64_t topk = 0;
  int64_t hidden = 0;
  int64_t linear1_width = 0;    ///< 2I
  int64_t activated_width = 0;  ///< I, or 2I where the activation has no gate
  bool int8 = false;            ///< A8W8-INT, else A16W16
  ActivationRule activation;
  std::vector<std::vector<int64_t>>
      expert_of_slot;  ///< [rank][token * topk + slot], kUnusedSlot where none counts
};

/// Checks every argument of every rank. Nothing has been written when it fails.
Result<Problem> check_problem(const BufferConfig& config, const Activation& activation,
                              const std::vector<RankInput>& ranks);

}  // namespace megamoe::reference
