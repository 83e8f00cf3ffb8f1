// Weights of a bfloat16 layer in the types of a scenario, and the error a scenario may have.
#include "cli/scenario_weights.h"

#include <cmath>
#include <limits>

#include "format/bf16.h"

namespace megamoe::cli {
namespace {

/// Fills weight1 and weight2 of the job from bfloat16 ones.
using Convert = Status (*)(const LayerJob& bf16, ScenarioJob& job);

Status keep(const LayerJob&, ScenarioJob&) {
  return Status::ok();
}

Status to_int8(const LayerJob& bf16, ScenarioJob& job) {
  auto first = checkpoint::quantise_int8(bf16.weight1), second = checkpoint::quantise_int8(bf16.weight2);
  if (!first) return first.status();
  if (!second) return second.status();
  job.converted1 = std::move(*first);
  job.converted2 = std::move(*second);
  job.job.weight1 = job.converted1->weights();
  job.job.weight2 = job.converted2->weights();
  return Status::ok();
}

constexpr struct {
  DType weight;
  Convert convert;
} kConversions[] = {{DType::kBFloat16, keep}, {DType::kInt8, to_int8}};

/// The conversion to a weight type, or null.
Convert conversion_to(DType weight) {
  for (const auto& row : kConversions) {
    if (row.weight == weight) return row.convert;
  }
  return nullptr;
}

/// float sums may come in any order, int32 sums are exact.
constexpr struct {
  kernel::Family family;
  double bound;
} kBounds[] = {{kernel::Family::kBf16, 4e-3}, {kernel::Family::kS8, 1e-3}};

}  // namespace

Result<std::vector<const moe::Scenario*>> scenarios_named(const std::string& name) {
  std::vector<const moe::Scenario*> chosen;
  if (name == "all") {
    for (const moe::Scenario& scenario : moe::scenarios()) {
      if (conversion_to(scenario.weight) != nullptr) chosen.push_back(&scenario);
    }
    return chosen;
  }
  auto found = moe::scenario_from_name(name);
  if (!found) return Status(found.status().code(), found.status().message() + " or all");
  chosen.push_back(*found);
  return chosen;
}

Result<ScenarioJob> scenario_job(const LayerJob& bf16, const moe::Scenario& scenario) {
  ScenarioJob result;
  result.job = bf16;
  result.job.config.dispatch_quant_mode = scenario.dispatch_quant_mode;
  result.job.config.dispatch_quant_out_dtype = scenario.dispatch_quant_out_dtype;
  if (const Convert convert = conversion_to(scenario.weight)) {
    MEGAMOE_RETURN_IF_ERROR(convert(bf16, result));
    return result;
  }
  return Status(Code::kUnsupported, std::string("scenario = ") + scenario.name +
                                        ": expected one whose weights can be made from bfloat16");
}

double error_bound(const moe::Scenario& scenario) {
  for (const auto& row : kBounds) {
    if (row.family == scenario.family1) return row.bound;
  }
  return std::numeric_limits<double>::infinity();
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
