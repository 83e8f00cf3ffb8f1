// Layers planned without weights or memory for rows: what they would be, or why they cannot be.
#include "cli/planned_layer.h"

#include <algorithm>
#include <utility>

#include "pack/weight_matrix.h"

namespace megamoe::cli {

BufferConfig shape_config(const Shape& shape, const std::string& profile, int64_t tokens) {
  BufferConfig config = config_of(shape);
  config.num_max_tokens_per_rank = tokens;
  config.profile = profile;
  return config;
}

Result<PlannedLayer> plan_layer(const Group& group, const BufferConfig& config, const moe::Scenario& scenario,
                                const CommonOptions& common, const OneElementWeights& weights,
                                const LayerExtras& extras) {
  BufferConfig dispatched = config;
  dispatched.dispatch_quant_mode = scenario.dispatch_quant_mode;
  dispatched.dispatch_quant_out_dtype = scenario.dispatch_quant_out_dtype;
  BufferConfig own = dispatched;
  if (extras.coded_tokens) own.dispatch_quant_mode = 0;
  BufferOptions options;
  options.threads = common.threads;
  options.isa = common.isa;
  options.plan_only = true;
  auto buffer = SymmBuffer::create(group, own, options);
  if (!buffer) return buffer.status();
  PlannedLayer planned;
  planned.layer = weights.layer(scenario, dispatched, group.size(), (*buffer)->experts_per_rank(), extras);
  planned.layer.tuning = common.tuning;
  auto op = MegaMoe::create(*buffer, planned.layer);
  if (!op) return op.status();
  planned.op = std::move(*op);
  return planned;
}

Status check_layers(const BufferConfig& config, const std::vector<const moe::Scenario*>& scenarios,
                    const CommonOptions& common, const LayerExtras& extras) {
  // The first rank has experts, if any has; nothing is exchanged.
  auto groups = Group::local(common.ranks);
  if (!groups) return groups.status();
  for (const moe::Scenario* scenario : scenarios) {
    const auto planned = plan_layer((*groups)[0], config, *scenario, common, OneElementWeights(), extras);
    if (!planned) return planned.status();
  }
  return Status::ok();
}

Status check_layers(const LayerJob& job, int64_t tokens, const std::vector<const moe::Scenario*>& scenarios,
                    const CommonOptions& common, bool coded_tokens) {
  if (job.weight1.weight[0].dtype != DType::kBFloat16) return Status::ok();
  BufferConfig config = job.config;
  config.num_max_tokens_per_rank = std::max<int64_t>(1, most_tokens_per_rank(tokens, common.ranks));
  const int64_t shared = pack::experts_of(job.shared_weight1.weight);
  return check_layers(config, scenarios, common, {job.activation, shared, coded_tokens});
}

}  // namespace megamoe::cli
