// Prefix sums over the exchanged counts.
#include "comm/rows.h"

namespace megamoe::comm {

RowPlan::RowPlan(const LayoutInput& input)
    : input_(input),
      total_(input.experts),
      first_row_(input.experts),
      first_block_(input.experts),
      self_offset_(input.experts) {}

void RowPlan::build(const CallMatrix& matrix, int64_t self) {
  int64_t row = 0;
  int64_t block = 0;
  for (int64_t expert = 0; expert < input_.experts; ++expert) {
    if (expert % input_.experts_per_rank == 0) row = block = 0;  // every owner has a pool of its own
    int64_t total = 0;
    int64_t before_self = 0;
    for (int64_t source = 0; source < input_.ranks; ++source) {
      if (source == self) before_self = total;
      total += matrix.count(source, expert);
    }
    total_[expert] = total;
    first_row_[expert] = row;
    first_block_[expert] = block;
    self_offset_[expert] = before_self;
    row += total;
    block += blocks(expert);
  }
}

}  // namespace megamoe::comm
