// Inputs that went wrong in other mixture-of-experts software, through the whole layer.
#include <gtest/gtest.h>

#include <numeric>

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

}  // namespace
}  // namespace megamoe
