// Values at the ends of their formats: the fused path has the numbers, the infinities and the NaN of the
// reference, on every level, and a strange token never touches another one.
#include <gtest/gtest.h>

#include <limits>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::RankTokens;
using test::TestLayer;

constexpr int64_t kHidden = 70;  // a short last group
constexpr int64_t kInner = 38;
constexpr int64_t kTopk = 2;

class OddValues : public testing::TestWithParam<const char*> {
 protected:
  TestLayer layer(const LayerOptions& options = {}) const {
    return TestLayer({kHidden, kInner, 4, kTopk, GetParam(), "swiglu"}, 5, options);
  }

  // y of one rank against the reference: the same NaN and infinities, numbers within the bound of their row.
  void expect_reference(TestLayer& tested, std::vector<RankTokens> ranks, const std::string& what) const {
    const int64_t most = ranks[0].tokens;
    const std::vector<RankTokens> want = tested.reference(ranks, most);
    for (const Isa isa : test::runnable_levels()) {
      test::run_local(tested, ranks, most, {2, isa, true});
      for (int64_t t = 0; t < most; ++t) {
        double difference = 0, norm = 0;
        for (int64_t h = 0; h < kHidden; ++h) {
          const auto at = static_cast<size_t>(t * kHidden + h);
          const float got = format::bf16_to_float(ranks[0].y[at]);
          const float expected = format::bf16_to_float(want[0].y[at]);
          ASSERT_EQ(std::isnan(got), std::isnan(expected)) << what << " " << isa_name(isa) << " token " << t;
          if (std::isnan(got)) continue;
          if (std::isinf(got) || std::isinf(expected)) {
            ASSERT_EQ(got, expected) << what << " " << isa_name(isa) << " token " << t;
            continue;
          }
          difference += std::pow(double{got} - double{expected}, 2);
          norm += std::pow(double{expected}, 2);
        }
        ASSERT_LE(std::sqrt(difference), 4e-3 * std::sqrt(norm) + 1e-38)
            << what << " " << isa_name(isa) << " token " << t;
      }
    }
  }
};

void set_row(RankTokens& tokens, int64_t token, const std::function<uint16_t(int64_t)>& value) {
  for (int64_t h = 0; h < kHidden; ++h) tokens.x[static_cast<size_t>(token * kHidden + h)] = value(h);
}

TEST_P(OddValues, OfTokens) {
  constexpr uint16_t kNan = 0x7fc0, kNegativeNan = 0xffc1, kInfinity = 0x7f80, kMinus = 0x8000,
                     kLargest = 0x7f7f;
  TestLayer tested = layer();
  RankTokens tokens = tested.tokens(12);
  const auto keep = [&](int64_t t, int64_t h) { return tokens.x[static_cast<size_t>(t * kHidden + h)]; };
  set_row(tokens, 1, [&](int64_t h) { return h == 3 ? kNan : keep(1, h); });
  set_row(tokens, 2, [&](int64_t h) { return h == 69 ? kNegativeNan : keep(2, h); });
  set_row(tokens, 3, [&](int64_t h) { return h == 40 ? kInfinity : keep(3, h); });
  set_row(tokens, 4, [&](int64_t h) { return h % 32 == 5 ? kInfinity | kMinus : keep(4, h); });
  set_row(tokens, 5, [&](int64_t) { return uint16_t{0}; });
  set_row(tokens, 6, [&](int64_t) { return kMinus; });
  set_row(tokens, 7, [&](int64_t h) { return static_cast<uint16_t>(h % 64 + 1); });        // subnormals
  set_row(tokens, 8, [&](int64_t h) { return h == 0 ? uint16_t{0x0080} : uint16_t{0}; });  // the least normal
  set_row(tokens, 9, [&](int64_t) { return kNan; });
  set_row(tokens, 10, [&](int64_t h) { return h == 2 ? uint16_t{0x7e00} : keep(10, h); });  // 4e37
  static_cast<void>(kLargest);
  expect_reference(tested, {tokens}, "bfloat16");
}

TEST_P(OddValues, OfFloat16Tokens) {
  TestLayer tested = layer([] {
    LayerOptions options;
    options.x = DType::kFloat16;
    return options;
  }());
  RankTokens tokens = tested.tokens(8);
  const auto keep = [&](int64_t t, int64_t h) { return tokens.x[static_cast<size_t>(t * kHidden + h)]; };
  set_row(tokens, 1, [&](int64_t h) { return h == 3 ? uint16_t{0x7e00} : keep(1, h); });   // NaN
  set_row(tokens, 2, [&](int64_t h) { return h == 3 ? uint16_t{0x7c01} : keep(2, h); });   // signalling NaN
  set_row(tokens, 3, [&](int64_t h) { return h == 69 ? uint16_t{0xfc00} : keep(3, h); });  // -infinity
  set_row(tokens, 4, [&](int64_t h) { return static_cast<uint16_t>(h + 1); });             // subnormals
  set_row(tokens, 5, [&](int64_t) { return uint16_t{0x7bff}; });                           // 65504
  set_row(tokens, 6, [&](int64_t h) { return h % 2 ? uint16_t{0x8000} : uint16_t{0}; });
  expect_reference(tested, {tokens}, "float16");
}

TEST_P(OddValues, OfRouterWeights) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  for (const int early : {0, 1}) {
    TestLayer tested = layer([&] {
      LayerOptions options;
      options.topk_weights_type = early;
      options.biases = true;
      return options;
    }());
    RankTokens tokens = tested.tokens(10);
    const std::pair<float, float> weights[] = {{nan, 1},    {0, 1},          {-0.0f, 0},
                                               {-1, 0.5f},  {infinity, 1},   {1, -infinity},
                                               {1e-40f, 1}, {1e30f, 1e-30f}, {1e30f, 0}};
    for (size_t t = 0; t < std::size(weights); ++t) {
      tokens.weights[2 * t] = weights[t].first;
      tokens.weights[2 * t + 1] = weights[t].second;
    }
    tokens.ids[18] = -1;  // the weight of a slot that is not used is not read
    tokens.weights[18] = nan;
    expect_reference(tested, {tokens}, early ? "early weights" : "weights");
  }
}

// Codes and scale bytes of every value, NaN among them.
TEST_P(OddValues, OfCodedTokens) {
  if (!test::traits_of(GetParam()).mx_tokens()) GTEST_SKIP() << "tokens are not given as MX codes";
  LayerOptions options;
  options.coded_x = true;
  TestLayer tested = layer(options);
  RankTokens tokens = tested.tokens(16);
  for (size_t i = 0; i < tokens.codes.size() / 2; ++i) tokens.codes[i] = static_cast<std::byte>(i % 256);
  const uint8_t bytes[] = {0, 1, 2, 90, 120, 127, 130, 150, 255};
  for (size_t g = 0; g < tokens.scales.size(); ++g) tokens.scales[g] = bytes[g * 5 % std::size(bytes)];
  expect_reference(tested, {tokens}, "codes");
}

// A scale in the type the scenario has them in: float32 at the front of uint64, or of groups.
void put_scale(const test::ScenarioTraits& traits, float value, std::byte* to) {
  const uint16_t half =
      traits.group_scales == DType::kFloat16 ? format::f16_from_float(value) : format::bf16_from_float(value);
  const bool narrow = traits.group_scales == DType::kFloat16 || traits.group_scales == DType::kBFloat16;
  narrow ? std::memcpy(to, &half, sizeof half) : std::memcpy(to, &value, sizeof value);
}

// Scales of expert 0 at the ends of their type; tokens of the other experts keep their bits.
TEST_P(OddValues, OfWeightScales) {
  const test::ScenarioTraits& traits = test::traits_of(GetParam());
  if (traits.weight == DType::kBFloat16) GTEST_SKIP() << "weights without scales";
  TestLayer tested = layer();
  RankTokens tokens = tested.tokens(12);
  for (size_t t = 0; t < 12; ++t) {
    tokens.ids[2 * t] = t < 6 ? 0 : 2;
    tokens.ids[2 * t + 1] = 1;
  }
  std::vector<RankTokens> before{tokens};
  test::run_local(tested, before, 12, {1, default_isa().value(), true});
  const float floats[] = {0,
                          -0.0f,
                          -1e-2f,
                          1e-41f,
                          1e-30f,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};
  const uint8_t bytes[] = {0, 1, 60, 110, 255};
  for (const int layer_index : {1, 2}) {
    TestLayer changed = layer();
    std::vector<std::byte>& scales = changed.scales(layer_index);
    const size_t of_expert = scales.size() / 4;
    for (size_t i = 0; i < 40; ++i) {
      if (traits.mx()) {
        scales[i * 7 % of_expert] = static_cast<std::byte>(bytes[i % std::size(bytes)]);
      } else if (i < std::size(floats) &&
                 !(std::isinf(floats[i]) && (layer_index == 1 || traits.group != 0))) {
        put_scale(traits, floats[i], &scales[i * 3 * sizeof(uint64_t) % of_expert]);
      }
    }
    expect_reference(changed, {tokens}, "scales of layer " + std::to_string(layer_index));
    std::vector<RankTokens> after{tokens};
    test::run_local(changed, after, 12, {1, default_isa().value(), true});
    EXPECT_TRUE(
        std::equal(after[0].y.begin() + 6 * kHidden, after[0].y.end(), before[0].y.begin() + 6 * kHidden));
  }
}

// All codes a weight can have, in both layers of expert 0.
TEST_P(OddValues, OfWeightCodes) {
  const test::ScenarioTraits& traits = test::traits_of(GetParam());
  for (const int layer_index : {1, 2}) {
    TestLayer tested = layer();
    std::vector<std::byte>& codes = tested.codes(layer_index);
    const size_t step = traits.weight == DType::kBFloat16 ? 2 : 1;
    // bfloat16: zeros, infinities, NaN, subnormals and others.
    const uint16_t halves[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0x0001, 0x8070, 0x3f80};
    for (size_t i = 0; i < 300; ++i) {
      if (step == 2) {
        std::memcpy(&codes[i * step], &halves[i % std::size(halves)], step);
      } else {
        codes[i] = static_cast<std::byte>(i % 256);
      }
    }
    RankTokens tokens = tested.tokens(8);
    for (size_t t = 0; t < 8; ++t) {
      tokens.ids[2 * t] = t < 4 ? 0 : 2;
      tokens.ids[2 * t + 1] = 1;
    }
    expect_reference(tested, {tokens}, "codes of layer " + std::to_string(layer_index));
  }
}

// Engines pad a batch with tokens of any content: the others keep the bits they have without the padding.
TEST_P(OddValues, OfTokensThatTakeNoPart) {
  const test::ScenarioTraits& traits = test::traits_of(GetParam());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool coded : {false, true}) {
    if (coded && !traits.mx_tokens()) continue;
    LayerOptions options;
    options.coded_x = coded;
    options.shared_experts = 1;
    TestLayer tested = layer(options);
    std::vector<RankTokens> ranks{tested.tokens(9), tested.tokens(7)};
    for (RankTokens& rank : ranks) {
      for (int64_t t = 0; t < rank.tokens; ++t) rank.active.push_back(t % 3 != 1);
    }
    std::vector<RankTokens> padded = ranks;
    const int32_t odd_ids[] = {-2, 64, std::numeric_limits<int32_t>::min(),
                               std::numeric_limits<int32_t>::max()};
    for (RankTokens& rank : padded) {
      for (int64_t t = 1; t < rank.tokens; t += 3) {
        set_row(rank, t, [](int64_t) { return uint16_t{0x7fc0}; });
        for (int64_t i = 2 * t; i < 2 * t + 2; ++i) {
          rank.ids[static_cast<size_t>(i)] = odd_ids[i % 4];
          rank.weights[static_cast<size_t>(i)] = nan;
        }
        for (size_t g = 0; coded && g < 3; ++g) rank.scales[static_cast<size_t>(t) * 3 + g] = 255;
      }
    }
    for (const Isa isa : test::runnable_levels()) {
      test::run_local(tested, ranks, 9, {2, isa, true});
      test::run_local(tested, padded, 9, {2, isa, true});
      for (size_t r = 0; r < ranks.size(); ++r) {
        EXPECT_EQ(padded[r].y, ranks[r].y) << isa_name(isa);
        EXPECT_EQ(padded[r].counts, ranks[r].counts) << isa_name(isa);
        EXPECT_EQ(padded[r].y[static_cast<size_t>(kHidden)], 0);
      }
    }
    const std::vector<RankTokens> expected = tested.reference(ranks, 9);
    const std::vector<RankTokens> padded_expected = tested.reference(padded, 9);
    for (size_t r = 0; r < ranks.size(); ++r) {
      EXPECT_EQ(padded_expected[r].y, expected[r].y);
      EXPECT_EQ(padded_expected[r].counts, expected[r].counts);
    }
  }
}

TEST_P(OddValues, MasksOfNoToken) {
  for (const bool shared : {false, true}) {
    LayerOptions options;
    options.shared_experts = shared ? 1 : 0;
    TestLayer tested = layer(options);
    std::vector<RankTokens> ranks{tested.tokens(9), tested.tokens(7)};
    for (RankTokens& rank : ranks) rank.active.assign(static_cast<size_t>(rank.tokens), 0);
    test::run_local(tested, ranks, 9, {2, default_isa().value(), true});
    for (const RankTokens& rank : ranks) {
      EXPECT_EQ(rank.y, std::vector<uint16_t>(rank.y.size(), 0));
      EXPECT_EQ(std::vector<int32_t>(rank.counts.begin(), rank.counts.begin() + 2),
                std::vector<int32_t>(2, 0));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, OddValues, testing::ValuesIn(test::scenario_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megamoe
