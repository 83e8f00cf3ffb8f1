// Token rows on their way to their places: copied or quantised, their scales with them.
#pragma once

#include <cstdint>
#include <span>

#include "megamoe/tensor.h"
#include "route/quant_modes.h"
#include "route/sort.h"
#include "route/workers.h"

namespace megamoe::route {

/// Scales that quantised rows have: shape by mode; absent where the rule has none.
Result<TensorRef> describe_row_scales(const char* name, const RowMode& mode, int64_t rows, int64_t hidden);

/// Every token row goes to the places of its slots.
struct RowMove {
  TensorView x;                 ///< (tokens, hidden)
  int64_t topk = 0;             ///< slots per token
  const int32_t* to = nullptr;  ///< [tokens * topk] number of a row; outside [0, limit) it goes nowhere
  int64_t limit = 0;            ///< rows there are
  RowMode mode;
  float scale = 0, offset = 0;      ///< of rules that take them
  TensorView smooth;                ///< (1 or experts, hidden) float32, or absent
  const IdView* experts = nullptr;  ///< expert of each slot, with a smooth row per expert
  int64_t first_expert = 0;         ///< the one of smooth row 0
  TensorView row_scales;            ///< (tokens,) or (tokens, columns, 2): go along; or absent
  void* rows = nullptr;             ///< contiguous
  void* scales = nullptr;           ///< contiguous, or null

  int64_t row_bytes() const;
  int64_t scale_bytes() const;  ///< of one row; 0 without scales
};

void move_rows(const RowMove& move, Workers& workers);

/// Rows [begin, end) that no slot went to, with their scales, become zero.
struct RowRange {
  int64_t begin, end;
};
void clear_rows(const RowMove& move, std::span<const RowRange> ranges, Workers& workers);

}  // namespace megamoe::route
