// The checked arguments that moe_token_unpermute and its gradient share.
#pragma once

#include <cstdint>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::route {

struct UnpermutePlan {
  int64_t rows = 0, hidden = 0;  ///< of permuted_tokens
  int64_t tokens = 0, topk = 1;

  /// Checks everything but memory.
  static Result<UnpermutePlan> create(const TensorView& permuted, const TensorView& indices,
                                      const TensorView& probs, bool padded_mode);
};

}  // namespace megamoe::route
