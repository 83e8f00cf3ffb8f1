// Inputs that went wrong in other mixture-of-experts software, through the whole layer.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

// Rows after the first block, and just beside the sizes of blocks.
TEST(KnownInputs, RowsPastEveryBlockSize) {
  for (const char* scenario : {"A16W16", "A8W8-INT", "A8W4-FP"}) {
    TestLayer layer({32, 16, 5, 2, scenario, "swiglu"}, 3);
    const RankTokens all = layer.tokens(2049);
    std::vector<RankTokens> whole{all};
    test::run_local(layer, whole, 2049, {2, default_isa().value(), true});
    const std::vector<RankTokens> want = layer.reference({all}, 2049);
    EXPECT_LT(test::relative_error(whole[0].y, want[0].y), layer.traits().bound) << scenario;
    for (const int64_t tokens : {15, 16, 17, 255, 256, 257, 1023, 1024, 1025}) {
      std::vector<RankTokens> some{test::split(all, {tokens, 2049 - tokens})[0]};
      test::run_local(layer, some, 2049, {2, default_isa().value(), true});
      const auto end = whole[0].y.begin() + tokens * 32;
      EXPECT_TRUE(std::equal(some[0].y.begin(), some[0].y.end(), whole[0].y.begin(), end))
          << scenario << " " << tokens;
      EXPECT_EQ(std::accumulate(some[0].counts.begin(), some[0].counts.end(), int64_t{0}), 2 * tokens);
    }
  }
}

// Ranks with nothing to send, and ranks with nothing to do.
TEST(KnownInputs, RanksWithFewOrNoTokensAndAllTokensToOneRank) {
  for (const bool to_the_last_rank : {false, true}) {
    TestLayer layer({64, 32, 8, 2, "A8W8-INT", "swiglu"}, 5);
    const auto last = [](int64_t, int64_t k) { return static_cast<int32_t>(6 + k); };
    const RankTokens all = to_the_last_rank ? layer.tokens(263, last) : layer.tokens(263);
    std::vector<RankTokens> one{all};
    test::run_local(layer, one, 263, {1, default_isa().value(), true});
    std::vector<RankTokens> four = test::split(all, {0, 5, 1, 257});
    test::run_local(layer, four, 263, {1, default_isa().value(), true});
    EXPECT_EQ(test::gather_y(four), one[0].y) << to_the_last_rank;
  }
}

// A row of an expert beyond the largest float16, which its router weight makes small.
TEST(KnownInputs, RowsBeyondFloat16AreWeightedBeforeTheyAreRounded) {
  test::LayerOptions options;
  options.x = options.y = DType::kFloat16;
  TestLayer layer({64, 64, 1, 1, "A16W16", "swiglu"}, 7, options);
  const auto fill = [](std::vector<std::byte>& codes, float value) {
    auto* bits = reinterpret_cast<uint16_t*>(codes.data());
    std::fill_n(bits, codes.size() / 2, format::bf16_from_float(value));
  };
  // Gate and up are 40 each: swiglu(40, 40) = 1600; Linear2 sums 64 of them: 102400.
  fill(layer.codes(1), 0.625f);
  fill(layer.codes(2), 1);
  RankTokens tokens = layer.tokens(1);
  tokens.x.assign(64, format::f16_from_float(1));
  for (const auto& [weight, want] :
       {std::pair(0.01f, format::f16_from_float(1024)), std::pair(1.0f, uint16_t{0x7c00})}) {
    tokens.weights = {weight};
    for (const Isa isa : test::runnable_levels()) {
      std::vector<RankTokens> ranks{tokens};
      test::run_local(layer, ranks, 1, {1, isa, true});
      EXPECT_EQ(ranks[0].y, std::vector<uint16_t>(64, want)) << isa_name(isa) << " " << weight;
    }
  }
}

#if defined(__x86_64__)
// The caller's floating-point control neither changes a result nor is changed, whatever the values.
TEST(KnownInputs, SubnormalsUnderTheFloatingPointControlOfTheCaller) {
  constexpr unsigned kFlushAndRoundUp = 0x1f80 | 0x8040 | 0x4000;
  for (const char* scenario : {"A16W16", "A8W8-INT", "A8W8-FP"}) {
    TestLayer layer({64, 32, 4, 2, scenario, "swiglu"}, 9);
    if (!layer.scales(2).empty() && layer.traits().mx())
      std::fill(layer.scales(2).begin(), layer.scales(2).end(), std::byte{0});
    RankTokens tokens = layer.tokens(9);
    for (size_t i = 0; i < tokens.x.size(); i += 2) tokens.x[i] = static_cast<uint16_t>(tokens.x[i] & 0x807f);
    for (const Isa isa : test::runnable_levels()) {
      std::vector<uint16_t> results[2];
      for (const unsigned control : {0x1f80u, kFlushAndRoundUp}) {
        RankTokens rank = tokens;
        auto buffer = SymmBuffer::create(Group::self(), layer.config(9), test::options(2, isa));
        ASSERT_TRUE(buffer) << buffer.status().message();
        auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
        ASSERT_TRUE(moe) << moe.status().message();
        __builtin_ia32_ldmxcsr(control);
        const Status status = (*moe)->run(layer.args(rank, 4));
        const unsigned after = __builtin_ia32_stmxcsr();
        __builtin_ia32_ldmxcsr(0x1f80);
        EXPECT_TRUE(status) << status.message();
        EXPECT_EQ(after, control) << isa_name(isa);
        results[control != 0x1f80] = rank.y;
      }
      EXPECT_EQ(results[0], results[1]) << scenario << " " << isa_name(isa);
    }
  }
}
#endif

// Shards whose width is no multiple of a group or a panel: the kernels of the level with tails, and nothing
// of their padding in the second product.
TEST(KnownInputs, WidthsThatFillNoPanelRunTheKernelsOfTheLevel) {
  const std::pair<int64_t, int64_t> sizes[] = {{704, 176}, {704, 33}, {613, 33}, {613, 176}};
  for (const test::ScenarioTraits& traits : test::kScenarioTraits) {
    for (const auto& [hidden, inner] : sizes) {
      // Two codes share a byte.
      const bool nibbles = traits.nibbles() || traits.out == DType::kFloat4E2M1;
      if (nibbles && (hidden % 2 != 0 || inner % 2 != 0)) continue;
      const std::string what =
          std::string(traits.name) + " " + std::to_string(hidden) + " x " + std::to_string(inner);
      TestLayer layer({hidden, inner, 3, 2, traits.name, "swiglu"}, 9);
      const RankTokens tokens = layer.tokens(9);
      const std::vector<RankTokens> want = layer.reference({tokens}, 9);
      for (const Isa isa : test::runnable_levels()) {
        auto buffer = SymmBuffer::create(Group::self(), layer.config(9), test::options(2, isa));
        ASSERT_TRUE(buffer) << buffer.status().message();
        auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
        ASSERT_TRUE(moe) << moe.status().message();
        const std::string plan = (*moe)->describe();
        if (inner == 33 || hidden == 613) {
          EXPECT_NE(plan.find("with tail"), std::string::npos) << plan;
        }
        // The same kernels as for sizes that fill panels.
        const TestLayer even({640, 128, 3, 2, traits.name, "swiglu"}, 9);
        auto other = SymmBuffer::create(Group::self(), even.config(9), test::options(2, isa));
        ASSERT_TRUE(other) << other.status().message();
        auto same = MegaMoe::create(*other, even.layer(1, 0, true));
        ASSERT_TRUE(same) << same.status().message();
        EXPECT_EQ((*moe)->kernels(), (*same)->kernels()) << what << " " << isa_name(isa);
        RankTokens got = tokens;
        layer.poison(got);
        const Status status = (*moe)->run(layer.args(got, 3));
        ASSERT_TRUE(status) << status.message();
        EXPECT_LT(test::relative_error(got.y, want[0].y), traits.bound) << what << " " << isa_name(isa);
      }
    }
  }
}

// Half as many threads as cores to four times as many, more than one rank beside it: the same bits, and an
// end.
TEST(KnownInputs, ThreadsBeyondTheCores) {
  auto plain = SymmBuffer::create(Group::self(), TestLayer({64, 32, 8, 2, "A16W16", "swiglu"}, 4).config(4));
  ASSERT_TRUE(plain) << plain.status().message();
  const int cores = (*plain)->threads();  // unless told otherwise
  EXPECT_GE(cores, 1);
  EXPECT_LE(cores, static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  for (const char* scenario : {"A16W16", "A8W8-INT", "A8W4-FP"}) {
    TestLayer layer({64, 32, 8, 2, scenario, "swiglu"}, 4);
    for (const int64_t count : {1, 40}) {
      const RankTokens all = layer.tokens(count);
      std::vector<RankTokens> one{all};
      test::run_local(layer, one, count, {1, default_isa().value(), true});
      for (const int threads : {std::max(1, cores / 2), cores, 2 * cores, 4 * cores}) {
        for (const int64_t ranks : {1, 2}) {
          std::vector<RankTokens> parts =
              ranks == 1 ? std::vector{all} : test::split(all, {count / 2, count - count / 2});
          test::run_local(layer, parts, count, {threads, default_isa().value(), true});
          EXPECT_EQ(test::gather_y(parts), one[0].y) << scenario << ", " << threads << " threads";
        }
      }
    }
  }
}

// One token more chooses no other arithmetic: a token has the same bits in every batch of 1 to 33.
TEST(KnownInputs, NoBatchSizeChangesABit) {
  for (const char* scenario : {"A16W16", "A8W8-INT", "A4W4-FP"}) {
    TestLayer layer({256, 96, 128, 8, scenario, "swiglu"}, 6);
    const RankTokens all = layer.tokens(33);
    auto buffer = SymmBuffer::create(Group::self(), layer.config(33), test::options(2));
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe) << moe.status().message();
    std::vector<uint16_t> want;
    for (int64_t tokens = 33; tokens >= 1; --tokens) {
      RankTokens some = test::split(all, {tokens, 33 - tokens})[0];
      layer.poison(some);
      const Status status = (*moe)->run(layer.args(some, 128));
      ASSERT_TRUE(status) << status.message();
      if (want.empty()) want = some.y;
      EXPECT_TRUE(std::equal(some.y.begin(), some.y.end(), want.begin())) << scenario << " " << tokens;
    }
  }
}

}  // namespace
}  // namespace megamoe
