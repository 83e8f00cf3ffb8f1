// Row positions: every row of every source has one place, and blocks tile an expert's rows.
#include "comm/rows.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace megamoe::comm {
namespace {

TEST(RowPlan, EveryRowHasOnePlaceAndBlocksCoverThem) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    LayoutInput input;
    input.ranks = 1 + static_cast<int64_t>(random() % 4);
    input.experts = 1 + static_cast<int64_t>(random() % 9);
    input.experts_per_rank = (input.experts + input.ranks - 1) / input.ranks;
    input.block_rows = 1 + static_cast<int64_t>(random() % 20);
    CallMatrix matrix(input.ranks, input.experts);
    for (int64_t s = 0; s < input.ranks; ++s) {
      for (int64_t e = 0; e < input.experts; ++e)
        matrix.mutable_counts(s)[e] = random() % 3 == 0 ? 0 : random() % 70;
    }
    std::set<std::pair<int64_t, int64_t>> places;  // (owner, pool row)
    int64_t rows = 0;
    for (int64_t self = 0; self < input.ranks; ++self) {
      RowPlan plan(input);
      plan.build(matrix, self);
      std::set<std::pair<int64_t, int64_t>> counters;  // (owner, arrival counter)
      for (int64_t e = 0; e < input.experts; ++e) {
        int64_t covered = 0;
        for (int64_t b = 0; b < plan.blocks(e); ++b) {
          EXPECT_EQ(plan.block_begin(e, b), covered);
          EXPECT_LE(plan.block_rows(e, b), input.block_rows);
          EXPECT_GE(plan.block_rows(e, b), 1);
          covered += plan.block_rows(e, b);
          EXPECT_TRUE(counters.insert({plan.owner(e), plan.first_block(e) + b}).second);
        }
        EXPECT_EQ(covered, plan.total(e));
        for (int64_t i = 0; i < matrix.count(self, e); ++i, ++rows) {
          const int64_t in_expert = plan.self_offset(e) + i;
          EXPECT_TRUE(places.insert({plan.owner(e), plan.first_row(e) + in_expert}).second);
          const int64_t b = plan.block_of(e, in_expert);
          EXPECT_LE(plan.block_begin(e, b), in_expert);
          EXPECT_GT(plan.block_begin(e, b + 1), in_expert);
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(places.size()), rows);
  }
}

}  // namespace
}  // namespace megamoe::comm
