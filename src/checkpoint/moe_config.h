// What config.json of a Hugging Face checkpoint says about its expert layers.
#pragma once

#include <cstdint>
#include <string>

#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// How a token chooses its experts, in the terms of moe_gating_top_k.
struct RoutingConfig {
  std::string scoring;  ///< "softmax" or "sigmoid"; empty = sigmoid for layers with a correction bias
  int64_t n_group = 1, topk_group = 1;
  std::string group_score = "top2_sum";
  bool renormalize = true;
  bool corrected =
      false;  ///< scores are corrected for the choice: layers lack something without a correction bias
  int usual_correction = 0;  ///< which of the names that a scheme has for the correction bias
  double routed_scaling_factor = 1;
};

/// How integer weights are stored; config.json's quantization_config.
struct StoredQuantisation {
  std::string method;      ///< "gptq", "awq", "compressed-tensors", ...; empty without quantization_config
  int64_t bits = 0;        ///< 0 = not said
  int64_t group = 0;       ///< k that share a scale; -1 = all, 0 = not said
  bool symmetric = false;  ///< zero points may be missing
  bool plus_one = false;   ///< zero points are stored less 1
  bool ordered = false;    ///< groups follow an order of activations, which the tensors g_idx must tell
  std::string version;     ///< of AWQ: "gemm", ...
};

struct MoeConfig {
  std::string model_type;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t shared_experts = 0;  ///< of the intermediate width each, as n_shared_experts says
  int64_t shared_width = 0;    ///< of all shared experts together, where that is given instead
  int64_t gated_shared = 0;    ///< width of a shared expert whose weight a gate of its own gives
  Activation activation;
  RoutingConfig routing;
  StoredQuantisation quantisation;
};

Result<MoeConfig> read_moe_config(const std::string& path);

}  // namespace megamoe::checkpoint
