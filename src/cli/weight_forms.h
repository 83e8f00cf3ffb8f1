// How the weights of a layer are handed over: the forms that a profile takes, and weights brought into one.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cli/layer_job.h"
#include "moe/limits.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// One way to hand over the weights of a linear layer.
struct WeightForm {
  bool stacked = true;  ///< one tensor of all experts, or one for each
  bool k_last = false;
  Layout layout = Layout::kNd;
  DType channel_scales = DType::kFloat32;
};

/// What a layer has beside its shape and scenario.
struct LayerExtras {
  Activation activation;
  int64_t shared_experts = 0;
  bool coded_tokens = false;  ///< they come as MX codes with scales
};

/// Weights of the right shape and type whose elements are all one element, for plans: only their description
/// matters there. Must outlive the layers made of them.
class OneElementWeights {
 public:
  /// A layer of a scenario in a form that the profile of `config` takes. Where there is none it has some
  /// form, and MegaMoe::create says what the profile expects.
  Layer layer(const moe::Scenario& scenario, const BufferConfig& config, int64_t ranks, int64_t experts,
              const LayerExtras& extras) const;

 private:
  LinearWeights linear(const moe::Scenario& scenario, const WeightForm& form, bool bias, int64_t experts,
                       int64_t k, int64_t n) const;

  uint64_t element_ = 0;
};

/// Memory of weights that were copied into another form.
using FormMemory = std::vector<std::shared_ptr<const void>>;

/// Brings the weights of a job into a form that its profile takes, if there is one and they are not in one.
Status take_profile_form(LayerJob& job, const moe::Scenario& scenario, int64_t ranks, FormMemory& memory);

}  // namespace megamoe::cli
