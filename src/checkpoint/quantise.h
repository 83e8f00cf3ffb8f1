// Weights of a bfloat16 checkpoint -> int8 with one scale per output channel.
#pragma once

#include <memory>

#include "base/memory.h"
#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// int8 codes (E, N, K) and float32 scales (E, N) of one linear layer, and their view as weights.
class QuantisedLinear {
 public:
  const LinearWeights& weights() const { return weights_; }

 private:
  friend Result<std::unique_ptr<QuantisedLinear>> quantise_int8(const LinearWeights& weights);
  base::Pages codes_, scales_;
  LinearWeights weights_;
};

/// s = fl32(max|w| / 127), q = RNE(fl32(w / s)) for every output channel; a zero channel has s = 0 and q = 0,
/// a NaN element q = 0. Weights are bfloat16 ND; gate and up may be separate tensors, the result has them
/// side by side.
Result<std::unique_ptr<QuantisedLinear>> quantise_int8(const LinearWeights& weights);

}  // namespace megamoe::checkpoint
