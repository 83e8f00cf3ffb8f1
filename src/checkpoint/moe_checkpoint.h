// The mixture-of-experts layers of a Hugging Face checkpoint, as views of its files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/moe_config.h"
#include "checkpoint/stored_linear.h"
#include "checkpoint/tensor_set.h"
#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// One expert layer with all experts. Views live as long as the checkpoint and `memory`.
struct MoeLayer {
  int64_t index = 0;
  LinearWeights weight1, weight2;
  /// Experts that every token passes, unweighted; empty without any.
  LinearWeights shared_weight1, shared_weight2;
  /// Experts behind the routed ones in weight1 and weight2 that every token passes too, with the weight
  /// sigmoid(x * shared_gate).
  int64_t gated = 0;
  TensorView shared_gate;      ///< (1, hidden) float32
  TensorView router;           ///< (num_experts, hidden) float32
  TensorView router_bias;      ///< (num_experts,) float32, added to the logits; may be absent
  TensorView correction_bias;  ///< (num_experts,) float32, added to the scores for the choice; may be absent
  std::string scoring;         ///< "softmax" or "sigmoid"
  std::shared_ptr<const void> memory;  ///< of what is not stored as the library takes it
};

class MoeCheckpoint {
 public:
  /// `path`: directory with config.json, or one of its safetensors files.
  static Result<std::unique_ptr<MoeCheckpoint>> open(const std::string& path);

  const MoeConfig& config() const { return config_; }
  /// Numbers of the layers that have experts, ascending.
  const std::vector<int64_t>& layers() const { return layers_; }
  /// A layer; every shape is checked against config.json. bfloat16 weights (float16 and float32 are rounded),
  /// float8_e4m3fn with the scales of 128 x 128 blocks, int4 and int8 of GPTQ, AWQ and compressed-tensors,
  /// MXFP4 of gpt-oss. A tensor that is missing or wrong is kDataLoss and named with its file.
  /// `gated`: the shared expert of Qwen2-MoE and Qwen3-Next follows the routed ones; without it is left out.
  Result<MoeLayer> layer(int64_t index, bool gated = false) const;
  const TensorSet& tensors() const { return *tensors_; }

 private:
  Status append_gated(const std::string& name, MoeLayer& layer, LayerMemory& memory) const;
  /// Linear1 of `shape` and Linear2, whose reduction is `width`.
  Status read_pair(const LinearNames& names1, LinearShape shape, const LinearNames& names2, int64_t width,
                   LayerMemory& memory, LinearWeights& weight1, LinearWeights& weight2) const;

  MoeConfig config_;
  std::unique_ptr<TensorSet> tensors_;
  std::vector<int64_t> layers_;
};

/// Experts [begin, begin + count) of a layer's weights.
LinearWeights expert_range(const LinearWeights& weights, int64_t begin, int64_t count);

}  // namespace megamoe::checkpoint
