// Row positions: every row of every source has one place, and blocks tile an expert's rows.
#include "comm/rows.h"

#include <gtest/gtest.h>

#include <limits>
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

// Counts near 2^32 of ranks that send much, nothing, or all they have to one expert.
TEST(RowPlan, PositionsBeyond32BitsAreExact) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  LayoutInput input;
  input.ranks = 3;
  input.experts = 4;
  input.experts_per_rank = 2;
  input.block_rows = 64;
  CallMatrix matrix(input.ranks, input.experts);
  const int64_t counts[3][4] = {{kMost, kMost, 0, 1}, {0, 0, 0, 0}, {kMost, 7, kMost, 0}};
  for (int64_t s = 0; s < 3; ++s) {
    for (int64_t e = 0; e < 4; ++e) matrix.mutable_counts(s)[e] = static_cast<uint32_t>(counts[s][e]);
  }
  for (int64_t self = 0; self < 3; ++self) {
    RowPlan plan(input);
    plan.build(matrix, self);
    const int64_t totals[] = {2 * kMost, kMost + 7, kMost, 1};
    for (int64_t e = 0; e < 4; ++e) {
      EXPECT_EQ(plan.total(e), totals[e]);
      EXPECT_EQ(plan.first_row(e), e % 2 == 0 ? 0 : totals[e - 1]) << "behind the other expert of its owner";
      EXPECT_EQ(plan.self_offset(e), self == 0 ? 0 : counts[0][e]) << "behind the rows of lower ranks";
      const int64_t blocks = (totals[e] + 63) / 64;
      ASSERT_EQ(plan.blocks(e), blocks);
      EXPECT_EQ(plan.first_block(e), e % 2 == 0 ? 0 : (totals[e - 1] + 63) / 64);
      // Block after block without a gap, up to the end.
      EXPECT_EQ(plan.block_begin(e, 0), 0);
      EXPECT_EQ(plan.block_begin(e, blocks - 1) + plan.block_rows(e, blocks - 1), totals[e]);
      for (int64_t b = 0; b + 1 < blocks; b += 1 + blocks / 1000) {
        ASSERT_EQ(plan.block_begin(e, b) + plan.block_rows(e, b), plan.block_begin(e, b + 1));
        ASSERT_EQ(plan.block_of(e, plan.block_begin(e, b + 1)), b + 1);
        ASSERT_EQ(plan.block_of(e, plan.block_begin(e, b + 1) - 1), b);
      }
    }
  }
}

}  // namespace
}  // namespace megamoe::comm
