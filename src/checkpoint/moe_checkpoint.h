// The mixture-of-experts layers of a Hugging Face checkpoint, as views of its files.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/tensor_set.h"
#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// What config.json says about the expert layers.
struct MoeConfig {
  std::string model_type;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t num_experts = 0;
  int64_t top_k = 0;
  std::string activation;  ///< name of the operator documents
};

/// One expert layer; all experts, gate columns before up columns.
struct MoeLayer {
  int64_t index = 0;
  LinearWeights weight1, weight2;
  TensorView router;  ///< (num_experts, hidden)
};

class MoeCheckpoint {
 public:
  /// `path`: directory with config.json, or one of its safetensors files.
  static Result<std::unique_ptr<MoeCheckpoint>> open(const std::string& path);

  const MoeConfig& config() const { return config_; }
  /// Numbers of the layers that have experts, ascending.
  const std::vector<int64_t>& layers() const { return layers_; }
  /// Views of a layer, valid as long as this object; every shape is checked against
  /// config.json. float8_e4m3fn weights come with the scales of their 128 x 128 blocks, tensors
  /// `..._scale_inv`.
  Result<MoeLayer> layer(int64_t index) const;
  const TensorSet& tensors() const { return *tensors_; }

 private:
  MoeConfig config_;
  std::unique_ptr<TensorSet> tensors_;
  std::vector<int64_t> layers_;
  /// Scales that stand in several tensors, joined.
  mutable std::mutex joined_mutex_;
  mutable std::deque<std::vector<float>> joined_;
};

/// Experts [begin, begin + count) of a layer's weights.
LinearWeights expert_range(const LinearWeights& weights, int64_t begin, int64_t count);

}  // namespace megamoe::checkpoint
