// The fused layer against the reference, and its independence of ranks, threads, batch and transport.
#include <gtest/gtest.h>

#include <cmath>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::gather_y;
using test::LayerShape;
using test::RankTokens;
using test::run_local;
using test::split;
using test::TestLayer;

double bound(const LayerShape& shape) {
  return test::traits_of(shape.scenario).bound;
}

class Fused : public testing::TestWithParam<const char*> {
 protected:
  LayerShape shape(int64_t hidden, int64_t intermediate, int64_t experts, int64_t topk) const {
    LayerShape shape{hidden, intermediate, experts, topk, GetParam(), "swiglu"};
    return shape;
  }
};

TEST_P(Fused, MatchesTheReferenceOnEveryLevel) {
  for (const Isa isa : test::runnable_levels()) {
    for (const auto& [hidden, intermediate] :
         {std::pair<int64_t, int64_t>{128, 64}, {61, 33}, {62, 34}, {352, 176}}) {
      if (hidden % 2 != 0 && test::traits_of(GetParam()).nibbles()) continue;  // two codes share a byte
      TestLayer layer(shape(hidden, intermediate, 8, 3), 11);
      std::vector<RankTokens> ranks;
      for (const int64_t count : {int64_t{70}, int64_t{0}}) ranks.push_back(layer.tokens(count));
      const std::vector<RankTokens> want = layer.reference(ranks, 96);
      run_local(layer, ranks, 96, {2, isa, true});
      for (size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_LT(test::relative_error(ranks[r].y, want[r].y), bound(layer.shape())) << isa_name(isa);
        EXPECT_EQ(ranks[r].counts, want[r].counts);
      }
    }
  }
}

// Odd, tiny and just beside the group of 32: whatever two codes in a byte allow.
TEST_P(Fused, AnySizesMatchTheReference) {
  const test::ScenarioTraits& traits = test::traits_of(GetParam());
  int tested = 0;
  for (const int64_t hidden : {1, 2, 31, 32, 33, 34, 97}) {
    for (const int64_t intermediate : {1, 2, 31, 33, 34, 65}) {
      if (traits.nibbles() && (hidden % 2 != 0 || (traits.mx() && intermediate % 2 != 0))) continue;
      TestLayer layer(shape(hidden, intermediate, 3, 2), 13);
      std::vector<RankTokens> ranks{layer.tokens(7), layer.tokens(2)};
      const std::vector<RankTokens> want = layer.reference(ranks, 7);
      for (const Isa isa : test::runnable_levels()) {
        run_local(layer, ranks, 7, {1, isa, tested % 2 == 0});
        for (size_t r = 0; r < ranks.size(); ++r) {
          // Among few values one that rounds to the neighbouring number counts for more than the bound.
          const bool few = want[r].tokens * std::min(hidden, intermediate) < 64;
          EXPECT_LT(test::relative_error(ranks[r].y, want[r].y), few ? 0x1p-6 : bound(layer.shape()))
              << isa_name(isa) << " " << hidden << " x " << intermediate;
        }
      }
      ++tested;
    }
  }
  EXPECT_GE(tested, 6);
}

TEST_P(Fused, EveryActivationMatchesTheReference) {
  for (const char* activation : {"swiglu", "swiglustep", "swigluoai", "situglu", "gelu"}) {
    LayerShape wanted = shape(64, 48, 4, 2);
    wanted.activation = activation;
    TestLayer layer(wanted, 5);
    std::vector<RankTokens> ranks{layer.tokens(17)};
    const std::vector<RankTokens> want = layer.reference(ranks, 17);
    for (const Isa isa : test::runnable_levels()) {
      run_local(layer, ranks, 17, {1, isa, true});
      EXPECT_LT(test::relative_error(ranks[0].y, want[0].y), bound(wanted))
          << activation << " " << isa_name(isa);
    }
  }
}

TEST_P(Fused, SameBitsForAnyRanksThreadsAndPacking) {
  TestLayer layer(shape(96, 40, 8, 3), 21);
  const RankTokens all = layer.tokens(67);
  for (const Isa isa : test::runnable_levels()) {
    std::vector<RankTokens> one = split(all, {67});
    run_local(layer, one, 67, {1, isa, true});
    const std::vector<uint16_t> want = gather_y(one);
    const std::vector<std::vector<int64_t>> splits = {
        {67}, {30, 37}, {0, 5, 1, 61}, {9, 9, 9, 9, 9, 9, 9, 4}};
    for (const std::vector<int64_t>& sizes : splits) {
      for (const int threads : {1, 2, 3, 4}) {
        std::vector<RankTokens> ranks = split(all, sizes);
        run_local(layer, ranks, 67, {threads, isa, threads % 2 == 0});
        EXPECT_EQ(gather_y(ranks), want)
            << isa_name(isa) << " " << sizes.size() << " ranks, " << threads << " threads";
      }
    }
  }
}

TEST_P(Fused, ATokenAloneHasTheBitsItHasInABatch) {
  TestLayer layer(shape(64, 32, 4, 2), 31);
  const RankTokens all = layer.tokens(257);
  for (const Isa isa : test::runnable_levels()) {
    std::vector<RankTokens> batch = split(all, {257});
    run_local(layer, batch, 257, {2, isa, true});
    auto buffer = SymmBuffer::create(Group::self(), layer.config(1), test::options(1, isa));
    ASSERT_TRUE(buffer);
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe);
    for (int64_t t = 0; t < 257; ++t) {
      std::vector<RankTokens> pieces = split(all, {t, 1, 256 - t});
      RankTokens& token = pieces[1];
      layer.poison(token);
      ASSERT_TRUE((*moe)->run(layer.args(token, 4)));
      const std::vector<uint16_t> want(batch[0].y.begin() + t * 64, batch[0].y.begin() + (t + 1) * 64);
      ASSERT_EQ(token.y, want) << isa_name(isa) << " token " << t;
    }
  }
}

TEST_P(Fused, RoutingCornersMatchTheReference) {
  TestLayer layer(shape(48, 24, 8, 2), 41);
  const std::vector<std::pair<const char*, std::function<int32_t(int64_t, int64_t)>>> routings = {
      {"all to the last expert", [](int64_t, int64_t) { return 7; }},
      {"all to the first expert", [](int64_t, int64_t) { return 0; }},
      {"slots not used",
       [](int64_t t, int64_t k) { return (t + k) % 3 == 0 ? -1 : static_cast<int32_t>((t * 2 + k) % 8); }},
      {"nothing used", [](int64_t, int64_t) { return -1; }},
      {"one expert of one rank", [](int64_t t, int64_t) { return t % 5 == 0 ? 3 : -1; }},
  };
  for (const auto& [name, choose] : routings) {
    for (const int64_t count : {1, 15, 16, 17, 64, 65, 130}) {
      std::vector<RankTokens> ranks;
      for (int64_t r = 0; r < 4; ++r) ranks.push_back(layer.tokens(r == 1 ? 0 : count, choose));
      ranks[2].active.assign(static_cast<size_t>(count), 1);
      for (int64_t t = 0; t < count; t += 3) ranks[2].active[static_cast<size_t>(t)] = 0;
      const std::vector<RankTokens> want = layer.reference(ranks, 130);
      run_local(layer, ranks, 130, {1, default_isa().value(), true});
      for (size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_LT(test::relative_error(ranks[r].y, want[r].y), bound(layer.shape())) << name << " rank " << r;
        EXPECT_EQ(ranks[r].counts, want[r].counts) << name;
      }
    }
  }
}

TEST_P(Fused, OneExpertInAllSlotsFitsIntoTheAutomaticCapacity) {
  TestLayer layer(shape(32, 16, 2, 5), 47);  // more slots than a rank has experts
  std::vector<RankTokens> ranks;
  for (int r = 0; r < 2; ++r) ranks.push_back(layer.tokens(9, [](int64_t, int64_t) { return 1; }));
  const std::vector<RankTokens> want = layer.reference(ranks, 9);
  run_local(layer, ranks, 9, {1, Isa::kGeneric, true});
  for (size_t r = 0; r < 2; ++r) EXPECT_LT(test::relative_error(ranks[r].y, want[r].y), bound(layer.shape()));
}

TEST_P(Fused, ExpertsNeedNotDivideByRanks) {
  TestLayer layer(shape(32, 16, 5, 2), 43);  // 4 ranks own 2, 2, 1 and 0 experts
  const RankTokens all = layer.tokens(40);
  std::vector<RankTokens> one = split(all, {40});
  run_local(layer, one, 40, {1, Isa::kGeneric, true});
  std::vector<RankTokens> four = split(all, {10, 10, 10, 10});
  run_local(layer, four, 40, {1, Isa::kGeneric, true});
  EXPECT_EQ(gather_y(four), gather_y(one));
}

TEST_P(Fused, NanTokensStayAlone) {
  TestLayer layer(shape(64, 32, 4, 2), 51);
  std::vector<RankTokens> clean{layer.tokens(9)};
  std::vector<RankTokens> dirty = clean;
  for (int64_t h = 0; h < 64; ++h) dirty[0].x[static_cast<size_t>(4 * 64 + h)] = 0x7fc0;
  for (const Isa isa : test::runnable_levels()) {
    run_local(layer, clean, 9, {1, isa, true});
    run_local(layer, dirty, 9, {1, isa, true});
    for (size_t i = 0; i < clean[0].y.size(); ++i) {
      if (i / 64 == 4) continue;
      ASSERT_EQ(dirty[0].y[i], clean[0].y[i]) << isa_name(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Fused,
                         testing::Values("A16W16", "A8W8-INT", "A8W4-INT", "A8W8-FP", "A8W8-FP-E5M2",
                                         "A16W4-FP", "A8W4-FP", "A4W4-FP", "A16W4-GROUP", "A8W4-GROUP",
                                         "A16W8-BLOCK", "A8W8-BLOCK"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// |got - want| / |want| of a stage.
double stage_error(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return INFINITY;
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{got[i]} - double{want[i]}, 2);
    norm += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

void expect_rows(const StageRows& got, const StageRows& want) {
  constexpr double kNear = 1e-2;
  EXPECT_FALSE(want.home.empty());
  EXPECT_EQ(got.home, want.home);
  EXPECT_EQ(got.token_codes, want.token_codes);
  EXPECT_EQ(got.token_scales, want.token_scales);
  EXPECT_LT(stage_error(got.linear1, want.linear1), kNear);
  EXPECT_LT(stage_error(got.activated, want.activated), kNear);
  EXPECT_LT(stage_error(got.requantised, want.requantised), kNear);
  EXPECT_LT(stage_error(got.requantised_scales, want.requantised_scales), kNear);
  EXPECT_LT(stage_error(got.linear2, want.linear2), kNear);
}

TEST_P(Fused, StagesOfACallMatchTheReference) {
  for (const int combine_quant_mode : {0, 3}) {
    for (const char* activation : {"swiglu", "gelu"}) {
      LayerShape routed_shape = shape(72, 40, 4, 2), shared_shape = shape(72, 40, 2, 1);
      routed_shape.activation = shared_shape.activation = activation;
      TestLayer layer(routed_shape, 61), shared(shared_shape, 67);
      std::vector<RankTokens> ranks{layer.tokens(21), layer.tokens(6)};
      ranks[0].active.assign(21, 1);
      ranks[0].active[4] = 0;
      BufferConfig config = layer.config(21);
      config.combine_quant_mode = combine_quant_mode;
      std::vector<reference::RankInput> inputs;
      for (int r = 0; r < 2; ++r) {
        inputs.push_back({layer.args(ranks[static_cast<size_t>(r)], 2), layer.linear1(2, r),
                          layer.linear2(2, r), shared.linear1(1, 0), shared.linear2(1, 0)});
      }
      std::vector<Stages> want;
      const Status status = reference::mega_moe(config, layer.activation(), inputs, &want);
      ASSERT_TRUE(status) << status.message();
      for (const Isa isa : test::runnable_levels()) {
        test::on_local_ranks(2, [&](int rank, const Group& group) {
          const auto r = static_cast<size_t>(rank);
          BufferOptions options = test::options(2, isa);
          options.keep_stages = true;
          auto buffer = SymmBuffer::create(group, config, options);
          ASSERT_TRUE(buffer) << buffer.status().message();
          Layer plan = layer.layer(2, rank, true);
          plan.shared_weight1 = shared.linear1(1, 0);
          plan.shared_weight2 = shared.linear2(1, 0);
          auto moe = MegaMoe::create(*buffer, std::move(plan));
          ASSERT_TRUE(moe) << moe.status().message();
          EXPECT_FALSE((*moe)->stages()) << "no call yet";
          ASSERT_TRUE((*moe)->run(layer.args(ranks[r], 2)));
          const Result<Stages> got = (*moe)->stages();
          ASSERT_TRUE(got);
          SCOPED_TRACE(std::string(isa_name(isa)) + " " + activation);
          expect_rows(*got, want[r]);
          expect_rows(got->shared, want[r].shared);
          EXPECT_LT(stage_error(got->returned, want[r].returned), 5e-2);
          EXPECT_EQ(got->returned == got->linear2, combine_quant_mode == 0);
        });
      }
    }
  }
}

TEST_P(Fused, LeavesOutTheStagesThatAreNotKept) {
  TestLayer layer(shape(64, 32, 4, 2), 61);
  RankTokens tokens = layer.tokens(5);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(5), test::options(1));
  auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
  ASSERT_TRUE((*moe)->run(layer.args(tokens, 4)));
  const Result<Stages> got = (*moe)->stages();
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->linear1.empty());
  EXPECT_TRUE(got->activated.empty());
  EXPECT_TRUE(got->requantised.empty());
  EXPECT_EQ(got->token_codes.size(), 10u * 64);
  EXPECT_EQ(got->linear2.size(), 10u * 64);
}

// Blocks take over memory where a buffer has fewer rooms than blocks, and have their own where stages are
// kept.
TEST_P(Fused, GivesTheSameRowsInMemoryOfOtherBlocks) {
  TestLayer layer(shape(72, 40, 6, 3), 61);
  RankTokens tokens = layer.tokens(400);
  int64_t workspace[2] = {};
  std::vector<uint16_t> y[2];
  for (const bool keep : {false, true}) {
    BufferOptions options = test::options(2);
    options.keep_stages = keep;
    auto buffer = SymmBuffer::create(Group::self(), layer.config(400), options);
    ASSERT_TRUE(buffer);
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe);
    for (int call = 0; call < 3; ++call) ASSERT_TRUE((*moe)->run(layer.args(tokens, 6)));
    y[keep] = tokens.y;
    for (const auto& [key, value] : (*moe)->description()) {
      if (key.starts_with("workspace")) workspace[keep] = std::stoll(value);
    }
  }
  EXPECT_EQ(y[0], y[1]);
  EXPECT_LT(workspace[0], workspace[1]);
}

TEST(Fused, MultipliesE2M1AsIntegersFromAvx2On) {
  TestLayer layer({64, 32, 4, 2, "A4W4-FP", "swiglu"}, 1);
  for (const Isa isa : test::runnable_levels()) {
    auto buffer = SymmBuffer::create(Group::self(), layer.config(4), test::options(1, isa));
    ASSERT_TRUE(buffer);
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe);
    const std::string text = (*moe)->describe();
    const char* first = isa >= Isa::kAvx512Vnni ? "Linear1 kernel: s8_groups"
                        : isa >= Isa::kAvx2     ? "Linear1 kernel: s8_e2m1"
                                                : "Linear1 kernel: bf16";
    // At avx512 three products of bytes would take longer than one of floats.
    const bool digits = isa == Isa::kAvx2 || isa == Isa::kAvx512Vnni;
    const char* second = digits ? "Linear2 kernel: e4m3_e2m1" : "Linear2 kernel: bf16";
    EXPECT_NE(text.find(first), std::string::npos) << text;
    EXPECT_NE(text.find(second), std::string::npos) << text;
  }
}

TEST(Fused, DescribesTheKernelsThatRun) {
  TestLayer layer({64, 32, 4, 2, "A8W8-INT", "swiglu"}, 1);
  for (const Isa isa : test::runnable_levels()) {
    auto buffer = SymmBuffer::create(Group::self(), layer.config(4), test::options(1, isa));
    ASSERT_TRUE(buffer);
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe);
    const std::string text = (*moe)->describe();
    EXPECT_NE(text.find(std::string("isa: ") + isa_name(isa)), std::string::npos) << text;
    EXPECT_NE(text.find("Linear1 kernel: s8"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace megamoe
