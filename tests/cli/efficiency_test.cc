// Efficiency by pairs: a machine that changes its speed between and within pairs.
#include "cli/efficiency.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace megamoe::cli {
namespace {

constexpr Ceilings kRun{100, 1000};

TEST(PairedEfficiency, FollowsAMachineOfTwoSpeeds) {
  // Calls take 80 % of what the memory gives when they run; its speed flips after the second and the fourth.
  const std::vector<Ceilings> passes = {{50, 0}, {50, 0}, {50, 0}, {100, 0}, {100, 0}, {50, 0}};
  const std::vector<TimedCall> calls = {{1, 40, 0}, {1, 40, 0}, {1, 70, 0}, {1, 80, 0}, {1, 10, 0}};
  const Efficiency efficiency = paired_efficiency(calls, passes, kRun);
  EXPECT_EQ(efficiency.pairs, 3) << "a flip within a pair does not count";
  EXPECT_DOUBLE_EQ(efficiency.value, 0.8);
}

TEST(PairedEfficiency, HoldsACallAgainstTheMeanOfItsNeighbours) {
  const std::vector<Ceilings> passes = {{90, 0}, {100, 0}};
  EXPECT_DOUBLE_EQ(paired_efficiency({{{2, 95, 0}}}, passes, kRun).value, 0.5);
  // 15 % apart counts, more does not.
  EXPECT_EQ(paired_efficiency({{{1, 1, 0}}}, {{{85, 0}, {100, 0}}}, kRun).pairs, 1);
  EXPECT_EQ(paired_efficiency({{{1, 1, 0}}}, {{{84, 0}, {100, 0}}}, kRun).pairs, 0);
  EXPECT_EQ(paired_efficiency({{{1, 1, 0}}}, {{{0, 100}, {0, 84}}}, kRun).pairs, 0);
}

TEST(PairedEfficiency, LeavesOutInterruptedPasses) {
  EXPECT_EQ(paired_efficiency({{{1, 1, 0}}}, {{{40, 0}, {40, 0}}}, kRun).pairs, 1);
  EXPECT_EQ(paired_efficiency({{{1, 1, 0}}}, {{{39, 0}, {40, 0}}}, kRun).pairs, 0);
  EXPECT_EQ(paired_efficiency({{{1, 1, 0}}}, {{{100, 300}, {100, 300}}}, kRun).pairs, 0);
}

TEST(PairedEfficiency, TakesTheLongerOfReadingAndComputing) {
  const std::vector<Ceilings> both = {{100, 500}, {100, 500}};
  EXPECT_DOUBLE_EQ(paired_efficiency({{{1, 60, 250}}}, both, kRun).value, 0.6);
  EXPECT_DOUBLE_EQ(paired_efficiency({{{1, 40, 250}}}, both, kRun).value, 0.5);
  // A kind without passes counts by the ceiling of the run.
  EXPECT_DOUBLE_EQ(paired_efficiency({{{1, 40, 250}}}, {{{100, 0}, {100, 0}}}, kRun).value, 0.4);
  EXPECT_DOUBLE_EQ(paired_efficiency({{{1, 40, 250}}}, {{{0, 500}, {0, 500}}}, kRun).value, 0.5);
}

TEST(PairedEfficiency, IsNotANumberWithoutPairs) {
  const Efficiency none = paired_efficiency({{{1, 1, 0}}}, {{{10, 0}, {100, 0}}}, kRun);
  EXPECT_EQ(none.pairs, 0);
  EXPECT_TRUE(std::isnan(none.value));
  EXPECT_EQ(paired_efficiency({}, {}, kRun).pairs, 0);
}

TEST(MedianOf, IsTheMiddle) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median_of(std::vector<double>{4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace megamoe::cli
