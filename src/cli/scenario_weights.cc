// Weights of a layer in the types of a scenario, and the error a scenario may have.
#include "cli/scenario_weights.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>

#include "cli/workload.h"
#include "format/bf16.h"
#include "moe/limits.h"

namespace megamoe::cli {
namespace {

/// How bfloat16 weights become those of a scenario.
using Made = Result<std::unique_ptr<checkpoint::QuantisedLinear>>;
constexpr int64_t kGroup = 128;  // k that share a scale, the usual choice of checkpoints
Made by_rule(const LinearWeights& weights, const char* rule) {
  return checkpoint::quantise_linear(weights, rule);
}
Made by_group(const LinearWeights& weights, const char* /*rule*/) {
  return checkpoint::quantise_int4_groups(weights, kGroup);
}
Made by_block(const LinearWeights& weights, const char* /*rule*/) {
  return checkpoint::quantise_e4m3_blocks(weights);
}
constexpr struct {
  DType weight;
  pack::ScaleKind scales;
  Made (*make)(const LinearWeights&, const char* rule);
  const char* rule;
} kConversions[] = {
    {DType::kInt8, pack::ScaleKind::kChannel, by_rule, "int8_per_token"},
    {DType::kInt4, pack::ScaleKind::kChannel, by_rule, "int4_dynamic"},
    {DType::kFloat8E4M3, pack::ScaleKind::kMx, by_rule, "mx_round_up_e4m3"},
    {DType::kFloat8E5M2, pack::ScaleKind::kMx, by_rule, "mx_round_up_e5m2"},
    {DType::kFloat4E2M1, pack::ScaleKind::kMx, by_rule, "mx_floor_e2m1"},
    {DType::kInt4, pack::ScaleKind::kGroups, by_group, nullptr},
    {DType::kFloat8E4M3, pack::ScaleKind::kBlocks, by_block, nullptr},
};

/// Rounding a float sum to bfloat16 may give another code now and then; exact sums do not.
constexpr double kRoundedBound = 2e-3, kExactBound = 1e-3;

/// Whether a scenario takes these weights as they are.
bool takes(const moe::Scenario& scenario, const LinearWeights& weights) {
  const pack::WeightType* type =
      pack::find_weight_type(weights.weight[0].dtype, /*grouped=*/weights.scale_group != 0);
  return type != nullptr && type->dtype == scenario.weight && type->scales == scenario.weight_scales;
}

bool is_bf16(const LinearWeights& weights) {
  return weights.weight[0].dtype == DType::kBFloat16;
}

/// Routed weights as they are, and shared ones in some scenario with the same tokens.
bool takes_stored(const moe::Scenario& scenario, const LayerJob& job) {
  if (!takes(scenario, job.weight1) || !takes(scenario, job.weight2)) return false;
  if (job.shared_weight1.weight.empty()) return true;
  return std::any_of(moe::scenarios().begin(), moe::scenarios().end(), [&](const moe::Scenario& other) {
    return other.dispatch_quant_mode == scenario.dispatch_quant_mode &&
           other.dispatch_quant_out_dtype == scenario.dispatch_quant_out_dtype &&
           takes(other, job.shared_weight1);
  });
}

/// Scenarios whose tokens and weights a profile takes; all of them if it takes none or has no such name, so
/// that the library says what it expects.
std::vector<const moe::Scenario*> taken_by(const std::string& name,
                                           std::vector<const moe::Scenario*> scenarios) {
  const auto profile = moe::find_profile(name);
  if (!profile) return scenarios;
  const auto refused = [&](const moe::Scenario* scenario) {
    moe::Quantities q;
    q.set(moe::Parameter::kDispatchQuantMode, scenario->dispatch_quant_mode);
    q.set(moe::Parameter::kDispatchQuantOutDtype, scenario->dispatch_quant_out_dtype);
    q.set(moe::Parameter::kWeight1Type, scenario->weight);
    q.set(moe::Parameter::kWeight1ScaleGroup, pack::is_grouped(scenario->weight_scales) ? kGroup : 0);
    return !moe::check_limits(*profile, moe::LimitStage::kConfig, q) ||
           !moe::check_limits(*profile, moe::LimitStage::kLayer, q);
  };
  std::vector<const moe::Scenario*> taken;
  std::copy_if(scenarios.begin(), scenarios.end(), std::back_inserter(taken), std::not_fn(refused));
  return taken.empty() ? scenarios : taken;
}

/// Makes the weights of a scenario from bfloat16.
Status convert(const moe::Scenario& scenario, ScenarioJob& result) {
  LayerJob& job = result.job;
  if (scenario.weight == DType::kBFloat16) return Status::ok();
  const auto* row =
      std::find_if(std::begin(kConversions), std::end(kConversions), [&](const auto& conversion) {
        return conversion.weight == scenario.weight && conversion.scales == scenario.weight_scales;
      });
  if (row == std::end(kConversions)) {
    return Status(Code::kUnsupported, std::string("scenario = ") + scenario.name +
                                          ": expected one whose weights can be made from bfloat16");
  }
  for (LinearWeights* weights : {&job.weight1, &job.weight2, &job.shared_weight1, &job.shared_weight2}) {
    if (weights->weight.empty()) continue;
    auto made = row->make(*weights, row->rule);
    if (!made) {
      return Status(made.status().code(),
                    std::string("scenario = ") + scenario.name + ": " + made.status().message());
    }
    *weights = (*made)->weights();
    result.converted.push_back(std::move(*made));
  }
  return Status::ok();
}

}  // namespace

Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names,
                                                          const std::string& profile) {
  std::vector<const moe::Scenario*> chosen;
  if (names == "all") {
    for (const moe::Scenario& scenario : moe::scenarios()) chosen.push_back(&scenario);
    return taken_by(profile, std::move(chosen));
  }
  for (const std::string& name : split_names(names)) {
    auto found = moe::scenario_from_name(name);
    if (!found) return Status(found.status().code(), found.status().message() + " or all");
    chosen.push_back(*found);
  }
  return chosen;
}

Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& names, const LayerJob& job) {
  if (is_bf16(job.weight1)) return scenarios_named(names, job.config.profile);
  std::vector<const moe::Scenario*> named;
  if (names != "all") {
    auto found = scenarios_named(names);
    if (!found) return found;
    named = std::move(*found);
  }
  std::vector<const moe::Scenario*> stored;
  std::string expected;
  for (const moe::Scenario& scenario : moe::scenarios()) {
    if (!takes_stored(scenario, job)) continue;
    stored.push_back(&scenario);
    expected += (expected.empty() ? "" : " or ") + std::string(scenario.name);
  }
  for (const moe::Scenario* scenario : named) {
    if (std::find(stored.begin(), stored.end(), scenario) != stored.end()) continue;
    return Status(Code::kUnsupported, std::string("scenario = ") + scenario->name + ": expected " +
                                          (expected.empty() ? "none" : expected) +
                                          ", for weights stored as " +
                                          dtype_name(job.weight1.weight[0].dtype));
  }
  if (stored.empty()) {
    return Status(Code::kUnsupported, std::string("weights are stored as ") +
                                          dtype_name(job.weight1.weight[0].dtype) +
                                          ": expected those of a scenario, docs/cli.md lists them");
  }
  return named.empty() ? taken_by(job.config.profile, std::move(stored)) : named;
}

const moe::Scenario& closest_scenario(const LayerJob& job) {
  for (const moe::Scenario& scenario : moe::scenarios()) {
    if (takes_stored(scenario, job)) return scenario;
  }
  return moe::scenarios()[0];
}

Result<ScenarioJob> scenario_job(const LayerJob& base, const moe::Scenario& scenario, int ranks) {
  ScenarioJob result;
  result.job = base;
  result.job.config.dispatch_quant_mode = scenario.dispatch_quant_mode;
  result.job.config.dispatch_quant_out_dtype = scenario.dispatch_quant_out_dtype;
  if (is_bf16(base.weight1)) MEGAMOE_RETURN_IF_ERROR(convert(scenario, result));
  MEGAMOE_RETURN_IF_ERROR(take_profile_form(result.job, scenario, ranks, result.forms));
  return result;
}

double error_bound(const moe::Scenario& scenario) {
  return scenario.epilogue1 == kernel::EpilogueKind::kBf16 ? kRoundedBound : kExactBound;
}

double relative_error(const uint16_t* got, const uint16_t* want, int64_t count) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double w = format::bf16_to_float(want[i]), d = format::bf16_to_float(got[i]) - w;
    difference += d * d;
    norm += w * w;
  }
  if (difference == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference / norm);
}

}  // namespace megamoe::cli
