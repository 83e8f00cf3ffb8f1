// Weights of a bfloat16 checkpoint -> codes and scales of a quantisation rule.
#pragma once

#include <memory>
#include <string_view>

#include "base/memory.h"
#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// Codes (E, N, K) of one linear layer with their scales, (E, N) float32 or (E, N, ceil(K / 64), 2) E8M0, and
/// the view of all as weights. Groups and blocks: scales as LinearWeights::scale_group has them.
class QuantisedLinear {
 public:
  const LinearWeights& weights() const { return weights_; }

 private:
  friend Result<std::unique_ptr<QuantisedLinear>> quantise_linear(const LinearWeights& weights,
                                                                  std::string_view rule);
  friend Result<std::unique_ptr<QuantisedLinear>> quantise_int4_groups(const LinearWeights& weights,
                                                                       int64_t group);
  friend Result<std::unique_ptr<QuantisedLinear>> quantise_e4m3_blocks(const LinearWeights& weights);
  base::Pages codes_, scales_, biases_;
  LinearWeights weights_;
};

/// Every output channel as a row of a rule of quant_rules(): one with float32 scales of whole rows or with
/// E8M0 scales. Weights are bfloat16 ND; gate and up may be separate tensors, the result has them side by
/// side. int4 weights come with the compensation bias of A8W4-INT, 8 * sum of the codes * scale. Biases that
/// are there stay the views they are, and so does the order of gate and up.
Result<std::unique_ptr<QuantisedLinear>> quantise_linear(const LinearWeights& weights, std::string_view rule);

/// The same with the rule int4_dynamic for each `group` k of a channel: scale_group weights, scales (E, N,
/// ceil(K / group)) float32, no zero points.
Result<std::unique_ptr<QuantisedLinear>> quantise_int4_groups(const LinearWeights& weights, int64_t group);

/// E4M3 with a scale for each block of 128 channels x 128 k, as FP8 checkpoints have them: scale = largest
/// weight / 448, 1 where all are zero; codes are the nearest, ties to even, of weight / scale.
Result<std::unique_ptr<QuantisedLinear>> quantise_e4m3_blocks(const LinearWeights& weights);

}  // namespace megamoe::checkpoint
