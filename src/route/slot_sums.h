// Sums of the rows of each token's slots, in slot order.
#pragma once

#include "megamoe/tensor.h"
#include "route/sort.h"
#include "route/workers.h"

namespace megamoe::route {

/// out[t] = sum over k of rows[index[t * topk + k]] * probs[t, k], in float with one rounding at the end.
/// Slots whose index is no row, or whose probability is 0, are skipped. With probs the sum starts from +0;
/// without, from the row of slot 0 if there is one.
struct SlotSums {
  TensorView rows;      ///< (M, H)
  const IdView* index;  ///< topk per token
  int64_t topk;
  TensorView probs;  ///< (tokens, topk), or absent
  TensorRef out;     ///< (tokens, H), contiguous
};

void sum_slots(const SlotSums& sums, Workers& workers);

/// Tokens that make a part worth a thread when each of them touches `row_bytes` this many times.
int64_t token_grain(int64_t row_bytes, int64_t rows_per_token);

}  // namespace megamoe::route
