// float16 tokens and results: what is exact, what is rounded and where.
#include <gtest/gtest.h>

#include <cmath>

#include "format/float16.h"
#include "scenario_world.h"

namespace megamoe::reference {
namespace {

class HalfTokens : public testing::TestWithParam<ScenarioTypes> {};
INSTANTIATE_TEST_SUITE_P(All, HalfTokens, testing::ValuesIn(kAllScenarios),
                         [](const auto& info) { return info.param.name; });

// Row 0 becomes `values`, repeated, in float16; all other rows zero.
void set_half(ScenarioWorld& w, const std::vector<float>& values) {
  Storage& x = w.ranks[0].x;
  x.ref.dtype = DType::kFloat16;
  for (int64_t e = 0; e < w.ranks[0].tokens * w.hidden; ++e) {
    const float value = e < w.hidden ? values[static_cast<size_t>(e) % values.size()] : 0.0f;
    put_bits(x.ref.data, DType::kFloat16, e, format::f16_from_float(value));
  }
}

// Numbers that bfloat16 holds as well give the same result in either type.
TEST_P(HalfTokens, ValuesOfBothTypesGiveTheSameResult) {
  ScenarioWorld w(GetParam(), {6}, 4, 2);
  Storage& x = w.ranks[0].x;
  for (int64_t e = 0; e < 6 * w.hidden; ++e) {
    put_bits(x.ref.data, DType::kBFloat16, e,
             format::bf16_from_float(static_cast<float>(static_cast<int>(e % 13) - 6) * 0.375f));
  }
  ASSERT_TRUE(w.run());
  const std::vector<float> want = w.y();
  for (int64_t e = 0; e < 6 * w.hidden; ++e) {
    const float value = static_cast<float>(static_cast<int>(e % 13) - 6) * 0.375f;
    put_bits(x.ref.data, DType::kFloat16, e, format::f16_from_float(value));
  }
  x.ref.dtype = DType::kFloat16;
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(w.y(), want);
}

// 1 + 2^-8 + 2^-10 is a float16 value between two of bfloat16, 1 and 1 + 2^-7, nearer to the second.
TEST_P(HalfTokens, BecomeCodesByTheRuleOfTheScenario) {
  ScenarioWorld w(GetParam(), {2}, 4, 2);
  const float fine = 1 + 0x1p-8f + 0x1p-10f;
  set_half(w, {fine, -fine / 4});
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  const Stages& s = w.stages[0];
  ASSERT_FALSE(s.home.empty());
  size_t row = 0;
  while (s.home[3 * row + 1] != 0) ++row;  // a row of token 0
  const auto code = [&](int64_t h) { return s.token_codes[row * static_cast<size_t>(w.hidden) + h]; };
  const size_t scales = s.token_scales.size() / (s.home.size() / 3);
  const float scale = s.token_scales[row * scales];
  switch (GetParam().token) {
    case DType::kBFloat16:
      EXPECT_EQ(code(0), 1 + 0x1p-7f);
      EXPECT_EQ(code(1), -(0.25f + 0x1p-9f));
      break;
    case DType::kInt8:
      EXPECT_EQ(scale, fine / 127);  // of the float16 value, not of a bfloat16 one
      EXPECT_EQ(code(0), 127);
      EXPECT_EQ(code(1), -32);  // -31.75
      break;
    default:
      EXPECT_EQ(code(0) * scale, 1);
      EXPECT_EQ(code(1) * scale, -0.25f);
  }
}

// The largest value below 2 rounds to 2 in bfloat16; the exponent that counts is that of the value.
TEST_P(HalfTokens, TheScaleOfAGroupIsThatOfTheValueItself) {
  if (!ScenarioWorld::is_mx(GetParam().token)) GTEST_SKIP() << "no group scales";
  ScenarioWorld w(GetParam(), {1}, 4, 2);
  set_half(w, {2 - 0x1p-10f});
  ASSERT_TRUE(w.run());
  const int largest = GetParam().token == DType::kFloat8E4M3   ? 8
                      : GetParam().token == DType::kFloat8E5M2 ? 15
                                                               : 2;
  EXPECT_EQ(w.stages[0].token_scales[0], std::ldexp(1.0f, -largest));
}

// Expert rows beyond the range of float16 are made small by their router weight before the one rounding.
TEST(HalfResult, IsRoundedOnceAfterTheWeights) {
  ScenarioWorld w(kAllScenarios[0], {1}, 1, 1, 64, 64);
  ASSERT_EQ(w.types.weight, DType::kBFloat16);
  // Linear1 gives gate 40 and up 40: swiglu(40, 40) = 1600 (bfloat16); Linear2 sums 64 of them.
  const auto fill = [](Storage& s, int64_t count, float value) {
    for (int64_t e = 0; e < count; ++e)
      put_bits(s.ref.data, DType::kBFloat16, e, format::bf16_from_float(value));
  };
  fill(w.ranks[0].x, 64, 1);
  fill(w.layer1.weight, 64 * 128, 0.625f);
  fill(w.layer2.weight, 64 * 64, 1);
  ScenarioWorld::weights(w.ranks[0])[0] = 0.01f;
  w.ranks[0].y.ref.dtype = DType::kFloat16;
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  const float row = w.expert_row(0, 0, 0)[0];
  EXPECT_EQ(row, format::bf16_to_float(format::bf16_from_float(64 * 1600)));
  EXPECT_EQ(get_bits(w.ranks[0].y.ref.data, DType::kFloat16, 0), format::f16_from_float(row * 0.01f));
  ScenarioWorld::weights(w.ranks[0])[0] = 1;
  ASSERT_TRUE(w.run());
  EXPECT_EQ(get_bits(w.ranks[0].y.ref.data, DType::kFloat16, 0), 0x7c00u);
}

}  // namespace
}  // namespace megamoe::reference
