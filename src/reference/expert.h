// What one expert does with one token, step by step.
#pragma once

#include <optional>
#include <vector>

#include "reference/activation.h"
#include "reference/coded_row.h"
#include "reference/linear.h"
#include "reference/scenario.h"

namespace megamoe::reference {

/// Every value between the codes of a token and its expert row.
struct ExpertRow {
  std::vector<float> linear1;
  std::vector<float> activated;
  CodedRow requantised;
  std::vector<float> linear2;  ///< bfloat16 values
};

/// Runs a token through one expert. A router weight given here is applied before the activated row becomes
/// codes.
ExpertRow run_expert(const Scenario& scenario, const ActivationRule& activation, const ExpertMatrix& weight1,
                     const ExpertMatrix& weight2, const CodedRow& token,
                     std::optional<float> early_weight = std::nullopt);

}  // namespace megamoe::reference
