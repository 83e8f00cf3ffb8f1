// Weights of a layer in the types of a scenario, and the error a scenario may have.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/quantise.h"
#include "cli/layer_job.h"
#include "cli/weight_forms.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// Scenarios of names with commas between them, or for "all" every one whose tokens and weights the profile
/// takes.
Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names,
                                                          const std::string& profile = "cpu");

/// The same for a layer and the profile of its settings. Weights may be stored as codes: then those that take
/// such weights, for "all" too.
Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names, const LayerJob& job);

/// Of the scenarios a layer can run in the one whose tokens lose least: bfloat16 tokens if there is one.
const moe::Scenario& closest_scenario(const LayerJob& job);

/// The job of a scenario; owns the weights it had to convert.
struct ScenarioJob {
  LayerJob job;
  std::vector<std::unique_ptr<checkpoint::QuantisedLinear>> converted;
  FormMemory forms;
};

/// The same layer and batches with the settings and weight types of `scenario`, in a form that the profile of
/// the settings takes. Weights of bfloat16 are converted, others have to be those of the scenario.
Result<ScenarioJob> scenario_job(const LayerJob& base, const moe::Scenario& scenario, int ranks = 1);

/// Largest relative Frobenius error of y against the reference with the same roundings.
double error_bound(const moe::Scenario& scenario);

/// |got - want|_F / |want|_F of bfloat16 values; 0 when both are zero.
double relative_error(const uint16_t* got, const uint16_t* want, int64_t count);

}  // namespace megamoe::cli
