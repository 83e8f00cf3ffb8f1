// Layers planned without weights or memory for rows: what they would be, or why they cannot be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/weight_forms.h"
#include "cli/workload.h"

namespace megamoe::cli {

/// The settings of a layer of some shape, with so many tokens of a rank at most.
BufferConfig shape_config(const Shape& shape, const std::string& profile, int64_t tokens);

struct PlannedLayer {
  Layer layer;
  std::unique_ptr<MegaMoe> op;
};

/// A layer of a scenario on one rank, as the plan of a layer with weights would be. `weights` has to outlive
/// it.
Result<PlannedLayer> plan_layer(const Group& group, const BufferConfig& config, const moe::Scenario& scenario,
                                const CommonOptions& common, const OneElementWeights& weights,
                                const LayerExtras& extras = {});

/// Whether the layer can be in all scenarios: says within milliseconds what its profile refuses, before
/// weights are made.
Status check_layers(const BufferConfig& config, const std::vector<const moe::Scenario*>& scenarios,
                    const CommonOptions& common, const LayerExtras& extras = {});
/// The same of a layer with bfloat16 weights, of which others are made; ok for one with codes. `tokens` are
/// those of all ranks.
Status check_layers(const LayerJob& job, int64_t tokens, const std::vector<const moe::Scenario*>& scenarios,
                    const CommonOptions& common, bool coded_tokens = false);

}  // namespace megamoe::cli
