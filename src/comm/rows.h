// Where rows lie in the pools of all ranks: a pure function of the exchanged matrix, the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/split.h"
#include "comm/exchange.h"
#include "comm/layout.h"

namespace megamoe::comm {

/// Row positions of one call. Rows are expert-major, then by source rank, then in the source's token order.
class RowPlan {
 public:
  explicit RowPlan(const LayoutInput& input);

  /// `self` is the rank whose sends are to be placed.
  void build(const CallMatrix& matrix, int64_t self);

  int64_t owner(int64_t expert) const { return expert / input_.experts_per_rank; }
  /// Rows of an expert from all ranks.
  int64_t total(int64_t expert) const { return total_[expert]; }
  /// First row of an expert in its owner's pool.
  int64_t first_row(int64_t expert) const { return first_row_[expert]; }
  /// First arrival counter of an expert in its owner's segment.
  int64_t first_block(int64_t expert) const { return first_block_[expert]; }
  /// Position inside the expert of this rank's first row.
  int64_t self_offset(int64_t expert) const { return self_offset_[expert]; }
  /// Blocks an expert's rows are split into, as evenly as whole rows allow, each at most block_rows tall.
  int64_t blocks(int64_t expert) const {
    return (total_[expert] + input_.block_rows - 1) / input_.block_rows;
  }
  /// First row of block b inside its expert; block b ends where block b + 1 starts.
  int64_t block_begin(int64_t expert, int64_t b) const { return split(expert).begin(b); }
  int64_t block_rows(int64_t expert, int64_t b) const { return split(expert).size(b); }
  /// The block that holds a row of an expert.
  int64_t block_of(int64_t expert, int64_t row) const { return split(expert).part_of(row); }

 private:
  base::EvenSplit split(int64_t expert) const { return {total_[expert], blocks(expert)}; }

  LayoutInput input_;
  std::vector<int64_t> total_, first_row_, first_block_, self_offset_;
};

}  // namespace megamoe::comm
