// What the options of bench and tune ask for: one shape in several scenarios, over routings and token counts.
#include "cli/measured_shape.h"

#include <algorithm>
#include <utility>

#include "cli/planned_layer.h"
#include "cli/scenario_weights.h"

namespace megamoe::cli {

Result<MeasuredShape> MeasuredShape::make(const CommonOptions& common, const MeasureOptions& options,
                                          const std::string& tokens) {
  auto shape = parse_shape(options.shape);
  if (!shape) return shape.status();
  auto counts = parse_counts(tokens, "--tokens");
  if (!counts) return counts.status();
  auto scenarios = scenarios_named(options.scenario, options.profile);
  if (!scenarios) return scenarios.status();
  const int64_t most = most_tokens_per_rank(*std::max_element(counts->begin(), counts->end()), common.ranks);
  MEGAMOE_RETURN_IF_ERROR(check_layers(shape_config(*shape, options.profile, most), *scenarios, common));
  MeasuredShape result{*shape, options.profile, std::move(*scenarios), {}};
  for (const std::string& routing : split_names(options.routing)) {
    for (const int64_t count : *counts) {
      auto drawn = Tokens::random(*shape, count, routing, kMeasuredSeed + static_cast<uint64_t>(count),
                                  kMeasuredRoutings);
      if (!drawn) return drawn.status();
      result.cells.push_back({routing, count, std::move(*drawn)});
    }
  }
  return result;
}

LayerJob MeasuredShape::job(const RandomLayer& layer) const {
  LayerJob job = layer.job();
  job.config.profile = profile;
  for (const MeasuredCell& cell : cells) job.batches.push_back(cell.tokens.batch());
  return job;
}

}  // namespace megamoe::cli
