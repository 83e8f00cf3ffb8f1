// Weights of a bfloat16 layer in the types of a scenario, and the error a scenario may have.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/quantise.h"
#include "cli/layer_job.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// Scenarios of names with commas between them, or every one for "all".
Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names);

/// The job of a scenario; owns the weights it had to convert.
struct ScenarioJob {
  LayerJob job;
  std::vector<std::unique_ptr<checkpoint::QuantisedLinear>> converted;
};

/// The same layer and batches with the settings and weight types of `scenario`. `bf16` has bfloat16 weights.
Result<ScenarioJob> scenario_job(const LayerJob& bf16, const moe::Scenario& scenario);

/// Largest relative Frobenius error of y against the reference with the same roundings.
double error_bound(const moe::Scenario& scenario);

/// |got - want|_F / |want|_F of bfloat16 values; 0 when both are zero.
double relative_error(const uint16_t* got, const uint16_t* want, int64_t count);

}  // namespace megamoe::cli
