// Weights of a layer in the types of a scenario, and the error a scenario may have.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/quantise.h"
#include "cli/layer_job.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// Scenarios of names with commas between them, or for "all" every one without scales of groups and blocks.
Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names);

/// The same for a layer whose weights may be stored as codes: then those that take such weights, for "all"
/// too.
Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names, const LayerJob& job);

/// Of the scenarios a layer can run in the one whose tokens lose least: bfloat16 tokens if there is one.
const moe::Scenario& closest_scenario(const LayerJob& job);

/// The job of a scenario; owns the weights it had to convert.
struct ScenarioJob {
  LayerJob job;
  std::vector<std::unique_ptr<checkpoint::QuantisedLinear>> converted;
};

/// The same layer and batches with the settings and weight types of `scenario`. Weights of bfloat16 are
/// converted, others have to be those of the scenario.
Result<ScenarioJob> scenario_job(const LayerJob& base, const moe::Scenario& scenario);

/// Largest relative Frobenius error of y against the reference with the same roundings.
double error_bound(const moe::Scenario& scenario);

/// |got - want|_F / |want|_F of bfloat16 values; 0 when both are zero.
double relative_error(const uint16_t* got, const uint16_t* want, int64_t count);

}  // namespace megamoe::cli
