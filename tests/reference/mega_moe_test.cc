// mega_moe of the reference: examples by hand, routing, ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "world.h"

namespace megamoe::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float fl32(double v) {
  return static_cast<float>(v);
}
float bf16(double v) {
  return format::bf16_to_float(format::bf16_from_float(static_cast<float>(v)));
}
double silu(double v) {
  return v / (1 + std::exp(-v));
}

World scenario(bool int8, std::vector<int64_t> tokens, int64_t experts = 4, int64_t topk = 2) {
  return World(int8, std::move(tokens), experts, topk, 20, 10);
}

class BothScenarios : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Scenario, BothScenarios, testing::Bool(),
                         [](const auto& info) { return info.param ? "A8W8Int" : "A16W16"; });

TEST(MegaMoe, Bf16ByHand) {
  World w(false, {1}, 1, 1, 2, 1);
  w.ranks[0].x = to_bf16({1, 2});
  w.ranks[0].ids = {0};
  w.ranks[0].weights = {0.5f};
  w.bf16_weight1 = to_bf16({1, 0.5f, 0, 0.25f});  // gate 1*1 + 2*0 = 1, up 1*0.5 + 2*0.25 = 1
  w.bf16_weight2 = to_bf16({2, -4});
  ASSERT_TRUE(w.run());
  // silu(1) = 0.7310586 is 0.73046875 in bfloat16
  EXPECT_EQ(to_float(w.ranks[0].y), (std::vector<float>{0.73046875f, -1.4609375f}));
  EXPECT_EQ(w.ranks[0].counts, (std::vector<int32_t>{1}));
  const Stages& s = w.stages[0];
  EXPECT_EQ(s.home, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(s.token_codes, (std::vector<float>{1, 2}));
  EXPECT_EQ(s.token_scales, (std::vector<float>{1}));
  EXPECT_EQ(s.linear1, (std::vector<float>{1, 1}));
  EXPECT_EQ(s.activated, (std::vector<float>{0.73046875f}));
  EXPECT_EQ(s.requantised, s.activated);
  EXPECT_EQ(s.requantised_scales, (std::vector<float>{1}));
  EXPECT_EQ(s.linear2, (std::vector<float>{1.4609375f, -2.921875f}));
}

TEST(MegaMoe, Int8ByHand) {
  World w(true, {1}, 1, 1, 3, 1);
  w.ranks[0].x = to_bf16({127, 0.5f, 1.5f});  // scale 1, codes 127, 0, 2
  w.ranks[0].ids = {0};
  w.ranks[0].weights = {2};
  w.int8_weight1 = {1, 0, 100, 50, 0, 3};  // gate 127, up 6
  w.scale1 = {0x1p-7f, 0.5f};
  w.int8_weight2 = {1, -1, 2};
  w.scale2 = {1, 1, 0.25f};
  ASSERT_TRUE(w.run());
  const Stages& s = w.stages[0];
  EXPECT_EQ(s.token_codes, (std::vector<float>{127, 0, 2}));
  EXPECT_EQ(s.token_scales, (std::vector<float>{1}));
  EXPECT_EQ(s.linear1, (std::vector<float>{0.9921875f, 3}));
  const float activated = fl32(silu(0.9921875) * 3);  // not rounded to 16 bits
  EXPECT_EQ(s.activated, (std::vector<float>{activated}));
  const float scale = activated / 127.0f;
  EXPECT_EQ(s.requantised, (std::vector<float>{127}));
  EXPECT_EQ(s.requantised_scales, (std::vector<float>{scale}));
  const std::vector<float> rows = {bf16(127 * scale), bf16(-127 * scale), bf16(63.5f * scale)};
  EXPECT_EQ(s.linear2, rows);
  EXPECT_EQ(to_float(w.ranks[0].y), (std::vector<float>{2 * rows[0], 2 * rows[1], 2 * rows[2]}));
}

TEST(MegaMoe, CombineAddsInSlotOrderInFloat) {
  World w(false, {1}, 1, 3, 2, 1);
  w.ranks[0].x = to_bf16({1, 2});
  w.ranks[0].ids = {0, 0, 0};
  w.bf16_weight1 = to_bf16({64, 1, 0, 0});  // gate 64: silu is 64 in float, up 1
  w.bf16_weight2 = to_bf16({0x1p-6f, -0x1p-6f});
  w.config.max_recv_token_num = 3;
  w.ranks[0].weights = {0x1p24f, 1, -0x1p24f};  // (2^24 + 1) - 2^24 loses the 1
  ASSERT_TRUE(w.run());
  EXPECT_EQ(to_float(w.ranks[0].y), (std::vector<float>{0, 0}));
  w.ranks[0].weights = {0x1p24f, -0x1p24f, 1};
  ASSERT_TRUE(w.run());
  EXPECT_EQ(to_float(w.ranks[0].y), (std::vector<float>{1, -1}));
  w.ranks[0].ids = {0, -1, -1};
  w.ranks[0].weights = {-0.0f, kNaN, kNaN};
  ASSERT_TRUE(w.run());
  EXPECT_EQ(w.ranks[0].y, (std::vector<uint16_t>{0x8000, 0}));  // the first product starts the sum
}

TEST_P(BothScenarios, UnusedSlotsAddNothing) {
  World w = scenario(GetParam(), {4}, 2);
  w.ranks[0].ids = {0, -1, -1, 1, -1, -1, 1, 0};
  for (size_t f : {1, 2, 4, 5}) w.ranks[0].weights[f] = kNaN;
  ASSERT_TRUE(w.run());
  EXPECT_EQ(w.ranks[0].counts, (std::vector<int32_t>{2, 2}));
  const std::vector<uint16_t> y = w.ranks[0].y;
  for (int64_t h = 0; h < w.hidden; ++h) EXPECT_EQ(y[2 * w.hidden + h], 0);
  // The other tokens are what each is alone with its used slots.
  for (int64_t t : {0, 1, 3}) {
    World alone = scenario(GetParam(), {1}, 2);
    alone.bf16_weight1 = w.bf16_weight1;
    alone.bf16_weight2 = w.bf16_weight2;
    alone.int8_weight1 = w.int8_weight1;
    alone.int8_weight2 = w.int8_weight2;
    alone.ranks[0].x.assign(w.ranks[0].x.begin() + t * w.hidden, w.ranks[0].x.begin() + (t + 1) * w.hidden);
    alone.ranks[0].ids = {w.ranks[0].ids[2 * t], w.ranks[0].ids[2 * t + 1]};
    alone.ranks[0].weights = {w.ranks[0].weights[2 * t], w.ranks[0].weights[2 * t + 1]};
    ASSERT_TRUE(alone.run());
    EXPECT_TRUE(std::equal(alone.ranks[0].y.begin(), alone.ranks[0].y.end(), y.begin() + t * w.hidden)) << t;
  }
}

TEST_P(BothScenarios, MaskedTokensTakeNoPart) {
  World w = scenario(GetParam(), {3});
  ASSERT_TRUE(w.run());
  const std::vector<uint16_t> all = w.ranks[0].y;
  const int32_t rows = std::accumulate(w.ranks[0].counts.begin(), w.ranks[0].counts.end(), 0);
  w.ranks[0].mask = {1, 0, 1};
  for (int64_t h = 0; h < w.hidden; ++h) w.ranks[0].x[w.hidden + h] = kPoison;
  ASSERT_TRUE(w.run());
  for (int64_t h = 0; h < w.hidden; ++h) {
    EXPECT_EQ(w.ranks[0].y[h], all[h]);
    EXPECT_EQ(w.ranks[0].y[w.hidden + h], 0);
    EXPECT_EQ(w.ranks[0].y[2 * w.hidden + h], all[2 * w.hidden + h]);
  }
  EXPECT_EQ(std::accumulate(w.ranks[0].counts.begin(), w.ranks[0].counts.end(), 0), rows - 2);
}

TEST_P(BothScenarios, AnExpertMayStandTwiceInAToken) {
  World w = scenario(GetParam(), {3}, 2);
  w.ranks[0].ids = {1, 1, 0, 1, 1, 1};
  ASSERT_TRUE(w.run());
  EXPECT_EQ(w.ranks[0].counts, (std::vector<int32_t>{1, 5}));
  // Row of token 0 at expert 1 comes from the stages: both slots have it, weighted each with its own weight.
  const Stages& s = w.stages[0];
  ASSERT_EQ(s.home.size(), 18u);
  EXPECT_EQ((std::vector<int64_t>(s.home.begin(), s.home.end())),
            (std::vector<int64_t>{0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 2, 0, 0, 2, 1}));
  for (int64_t h = 0; h < w.hidden; ++h) {
    const float row = s.linear2[w.hidden + h];
    EXPECT_EQ(s.linear2[2 * w.hidden + h], row);
    const float first = row * w.ranks[0].weights[0];
    const float second = row * w.ranks[0].weights[1];
    EXPECT_EQ(format::bf16_to_float(w.ranks[0].y[h]), bf16(first + second));
  }
}

// One world split over ranks in every way gives the same rows.
TEST_P(BothScenarios, RanksDoNotChangeTheResult) {
  World four = scenario(GetParam(), {0, 5, 1, 9}, 8, 3);
  ASSERT_TRUE(four.run());
  World one = scenario(GetParam(), {15}, 8, 3);
  one.bf16_weight1 = four.bf16_weight1;
  one.bf16_weight2 = four.bf16_weight2;
  one.int8_weight1 = four.int8_weight1;
  one.int8_weight2 = four.int8_weight2;
  RankData& all = one.ranks[0];
  all.x.clear();
  all.ids.clear();
  all.weights.clear();
  std::vector<uint16_t> y;
  std::vector<int32_t> counts;
  for (const RankData& rank : four.ranks) {
    all.x.insert(all.x.end(), rank.x.begin(), rank.x.end());
    all.ids.insert(all.ids.end(), rank.ids.begin(), rank.ids.end());
    all.weights.insert(all.weights.end(), rank.weights.begin(), rank.weights.end());
    y.insert(y.end(), rank.y.begin(), rank.y.end());
    counts.insert(counts.end(), rank.counts.begin(), rank.counts.end());
  }
  ASSERT_TRUE(one.run());
  EXPECT_EQ(one.ranks[0].y, y);
  EXPECT_EQ(one.ranks[0].counts, counts);
}

TEST_P(BothScenarios, AllTokensToOneRank) {
  World w = scenario(GetParam(), {0, 5, 1, 7}, 8, 2);
  for (RankData& rank : w.ranks) {
    for (size_t f = 0; f < rank.ids.size(); ++f) rank.ids[f] = 6 + static_cast<int32_t>(f % 2);
  }
  ASSERT_TRUE(w.run());
  EXPECT_EQ(w.ranks[3].counts, (std::vector<int32_t>{13, 13}));
  for (int r = 0; r < 3; ++r) EXPECT_EQ(w.ranks[r].counts, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(w.stages[3].home.size(), 26u * 3);
  EXPECT_TRUE(w.stages[0].home.empty());
}

TEST_P(BothScenarios, NoTokensAnywhere) {
  World w = scenario(GetParam(), {0, 0}, 4, 2);
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  for (const RankData& rank : w.ranks) EXPECT_EQ(rank.counts, (std::vector<int32_t>{0, 0}));
}

TEST_P(BothScenarios, NaNAndInfinityStayInTheirToken) {
  World w = scenario(GetParam(), {3});
  ASSERT_TRUE(w.run());
  const std::vector<uint16_t> clean = w.ranks[0].y;
  for (const float bad : {kNaN, std::numeric_limits<float>::infinity()}) {
    w.ranks[0].x[w.hidden + 3] = format::bf16_from_float(bad);
    ASSERT_TRUE(w.run());
    for (int64_t h = 0; h < w.hidden; ++h) {
      EXPECT_EQ(w.ranks[0].y[h], clean[h]);
      EXPECT_EQ(w.ranks[0].y[2 * w.hidden + h], clean[2 * w.hidden + h]);
    }
  }
}

// int8 sums are exact for all sign pairs at the ends of the range.
TEST(MegaMoe, Int8ExtremesAreExact) {
  World w(true, {1}, 1, 1, 6, 1);
  w.ranks[0].x = to_bf16({-127, 127, -7, -127, 127, 127});
  w.ranks[0].ids = {0};
  w.ranks[0].weights = {1};
  w.int8_weight1 = {-128, -127, -128, 127, 127, -128, -128, 127, 127, 127, -128, -128};
  w.scale1 = {1, 1};
  ASSERT_TRUE(w.run());
  const float gate = -127 * -128 + 127 * -128 - 7 * 127 + -127 * -128 + 127 * 127 + 127 * -128;
  const float up = -127 * -127 + 127 * 127 - 7 * -128 + -127 * 127 + 127 * 127 + 127 * -128;
  EXPECT_EQ(w.stages[0].linear1, (std::vector<float>{gate, up}));
}

TEST(MegaMoe, GeluUsesTheWholeWidth) {
  World w(false, {2}, 2, 1, 4, 3);
  w.activation.name = "gelu";
  w.bf16_weight2 = to_bf16(std::vector<float>(2 * 6 * 4, 0.5f));
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  ASSERT_EQ(w.stages[0].activated.size(), 12u);
  double sum = 0;
  for (int i = 0; i < 6; ++i) sum += w.stages[0].activated[i] * 0.5;
  EXPECT_EQ(w.stages[0].linear2[0], bf16(sum));
}

TEST(MegaMoe, CountsAreOptional) {
  World w = scenario(false, {2});
  std::vector<RankInput> inputs = w.inputs();
  inputs[0].call.expert_token_nums = TensorRef{};
  ASSERT_TRUE(mega_moe(w.config, w.activation, inputs));
  EXPECT_EQ(w.ranks[0].counts[0], -7);
  EXPECT_NE(w.ranks[0].y[0], kPoison);
}

}  // namespace
}  // namespace megamoe::reference
