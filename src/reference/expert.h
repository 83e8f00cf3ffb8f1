// What one expert does with one token, step by step.
#pragma once

#include <vector>

#include "reference/linear.h"
#include "reference/problem.h"

namespace megamoe::reference {

/// Every value between a token and its expert row. Codes are kept as numbers.
struct ExpertRow {
  std::vector<float> token_codes;
  float token_scale = 1;
  std::vector<float> linear1;
  std::vector<float> activated;
  std::vector<float> requantised;
  float requantised_scale = 1;
  std::vector<float> linear2;  ///< bfloat16 values
};

/// Runs `token` (hidden bfloat16 values) through one expert.
ExpertRow run_expert(const Problem& problem, const ExpertMatrix& weight1, const ExpertMatrix& weight2,
                     const std::vector<float>& token);

}  // namespace megamoe::reference
