// Checkpoint weights as codes of every rule that weights can have.
#include "checkpoint/quantise.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "checkpoint/moe_checkpoint.h"
#include "format/bf16.h"
#include "megamoe/quantise.h"

namespace megamoe::checkpoint {
namespace {

std::vector<uint16_t> bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float v : values) bits.push_back(format::bf16_from_float(v));
  return bits;
}

TEST(Quantise, RoundsTiesToEven) {
  // One output channel with the scale exactly 1, one of zeros, one with a NaN.
  const auto data = bf16({127,
                          0.5f,
                          1.5f,
                          2.5f,
                          -0.5f,
                          -1.5f,
                          -2.5f,  //
                          0,
                          -0.0f,
                          0,
                          0,
                          0,
                          0,
                          0,  //
                          std::numeric_limits<float>::quiet_NaN(),
                          -254,
                          127,
                          3,
                          2,
                          1,
                          0});
  LinearWeights weights;
  weights.k_last = true;
  weights.weight = {TensorView(data.data(), DType::kBFloat16, {1, 3, 7})};
  auto result = quantise_linear(weights, "int8_per_token");
  ASSERT_TRUE(result) << result.status().message();
  const LinearWeights& q = (*result)->weights();
  const auto* codes = static_cast<const int8_t*>(q.weight[0].data);
  const auto* scales = static_cast<const float*>(q.scale[0].data);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 21),
            (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 0, 0, 0, 0, 0, 0, 0, 0, -127, 64, 2, 1, 0, 0}));
  EXPECT_EQ(std::vector<float>(scales, scales + 3), (std::vector<float>{1, 0, 2}));
  EXPECT_EQ(q.weight[0].shape_text(), "(1, 3, 7)");
}

TEST(Quantise, SubnormalChannelSaturates) {
  const uint16_t smallest[2] = {0x0001, 0x8001};
  LinearWeights weights;
  weights.k_last = true;
  weights.weight = {TensorView(smallest, DType::kBFloat16, {1, 2})};
  auto result = quantise_linear(weights, "int8_per_token");
  ASSERT_TRUE(result) << result.status().message();
  const auto* codes = static_cast<const int8_t*>((*result)->weights().weight[0].data);
  EXPECT_EQ(codes[0], 127);
  EXPECT_EQ(codes[1], -127);
}

TEST(Quantise, SeparateUpAndEitherOrientationAgree) {
  std::vector<float> values;
  for (int i = 0; i < 2 * 6 * 5; ++i) values.push_back(static_cast<float>((i * 37) % 101 - 50) * 0.03f);
  const auto data = bf16(values);  // (2 experts, 6 outputs, 5 inputs)
  LinearWeights whole, apart, turned;
  whole.k_last = apart.k_last = true;
  whole.weight = {TensorView(data.data(), DType::kBFloat16, {2, 6, 5})};
  for (int e = 0; e < 2; ++e) {
    apart.weight.push_back(TensorView(data.data() + e * 30, DType::kBFloat16, {3, 5}));
    apart.up.push_back(TensorView(data.data() + e * 30 + 15, DType::kBFloat16, {3, 5}));
  }
  turned.weight = {TensorView(data.data(), DType::kBFloat16, {2, 5, 6})};
  turned.weight[0].strides[0] = 30, turned.weight[0].strides[1] = 1, turned.weight[0].strides[2] = 5;
  auto want = quantise_linear(whole, "int8_per_token");
  ASSERT_TRUE(want);
  for (const LinearWeights& weights : {apart, turned}) {
    auto got = quantise_linear(weights, "int8_per_token");
    ASSERT_TRUE(got) << got.status().message();
    EXPECT_EQ(std::memcmp((*got)->weights().weight[0].data, (*want)->weights().weight[0].data, 60), 0);
    EXPECT_EQ(std::memcmp((*got)->weights().scale[0].data, (*want)->weights().scale[0].data, 12 * 4), 0);
  }
}

/// (E, N, K) values of a layer's codes times their scales.
std::vector<float> dequantised(const LinearWeights& q, const std::string& rule) {
  const TensorView& w = q.weight[0];
  const int64_t rows = w.shape[0] * w.shape[1], k = w.shape[2];
  std::vector<float> values(static_cast<size_t>(rows * k));
  TensorView scale(q.scale[0].data, q.scale[0].dtype, {rows});
  if (q.scale[0].dims == 4)
    scale = TensorView(q.scale[0].data, q.scale[0].dtype, {rows, q.scale[0].shape[2], 2});
  const Status status = dequantise(rule, TensorView(w.data, w.dtype, {rows, k}), scale,
                                   TensorRef(values.data(), DType::kFloat32, {rows, k}));
  EXPECT_TRUE(status) << status.message();
  return values;
}

TEST(Quantise, EveryRuleOfWeightsStaysNear) {
  const struct {
    const char* rule;
    DType codes;
    double step;  ///< largest error relative to the largest magnitude of the group
  } rules[] = {{"int8_per_token", DType::kInt8, 0.5 / 127},
               {"int4_dynamic", DType::kInt4, 0.5 / 7},
               {"mx_round_up_e4m3", DType::kFloat8E4M3, 1.0 / 16},
               {"mx_round_up_e5m2", DType::kFloat8E5M2, 1.0 / 8},
               {"mx_floor_e2m1", DType::kFloat4E2M1, 0.25}};
  constexpr int64_t kExperts = 2, kOutputs = 6, kInputs = 70;  // a short last group
  std::vector<float> values;
  for (int i = 0; i < kExperts * kOutputs * kInputs; ++i) {
    values.push_back(static_cast<float>((i * 37) % 101 - 50) * 0.03f);
  }
  const auto data = bf16(values);
  LinearWeights weights;
  weights.k_last = true;
  weights.weight = {TensorView(data.data(), DType::kBFloat16, {kExperts, kOutputs, kInputs})};
  for (const auto& [rule, codes, step] : rules) {
    auto result = quantise_linear(weights, rule);
    ASSERT_TRUE(result) << result.status().message();
    const LinearWeights& q = (*result)->weights();
    EXPECT_EQ(q.weight[0].dtype, codes);
    EXPECT_EQ(q.weight[0].shape_text(), "(2, 6, 70)");
    EXPECT_EQ(q.scale[0].shape_text(), q.scale[0].dtype == DType::kFloat32 ? "(2, 6)" : "(2, 6, 2, 2)");
    EXPECT_EQ(q.bias.size(), codes == DType::kInt4 ? 1u : 0u);
    const std::vector<float> got = dequantised(q, rule);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], format::bf16_to_float(data[i]), 1.001 * step * 1.5) << rule << " " << i;
    }
  }
}

TEST(Quantise, Int4ComesWithItsCompensation) {
  const auto data = bf16({7, -3, 2, 1, 14, 14, -14, 0.4f, 0, 0, 0, 0});
  LinearWeights weights;
  weights.k_last = true;
  weights.weight = {TensorView(data.data(), DType::kBFloat16, {1, 3, 4})};
  auto result = quantise_linear(weights, "int4_dynamic");
  ASSERT_TRUE(result) << result.status().message();
  const LinearWeights& q = (*result)->weights();
  ASSERT_EQ(q.bias.size(), 1u);
  EXPECT_EQ(q.bias[0].shape_text(), "(1, 3)");
  const auto* scale = static_cast<const float*>(q.scale[0].data);
  const auto* bias = static_cast<const float*>(q.bias[0].data);
  EXPECT_EQ(std::vector<float>(bias, bias + 3),
            (std::vector<float>{8 * (7 * scale[0]), 8 * (7 * scale[1]), 0}));
  EXPECT_NEAR(scale[0], 1, 1e-6);
  EXPECT_NEAR(scale[1], 2, 1e-6);
  const auto* codes = static_cast<const uint8_t*>(q.weight[0].data);
  EXPECT_EQ(std::vector<uint8_t>(codes, codes + 6), (std::vector<uint8_t>{0xd7, 0x12, 0x77, 0x09, 0, 0}));
}

TEST(Quantise, ExpertsOfEveryRuleCanBeCutOut) {
  std::vector<float> values;
  for (int i = 0; i < 3 * 4 * 6; ++i) values.push_back(static_cast<float>((i * 29) % 61 - 30));
  const auto data = bf16(values);
  LinearWeights all, second;
  all.k_last = second.k_last = true;
  all.weight = {TensorView(data.data(), DType::kBFloat16, {3, 4, 6})};
  second.weight = {TensorView(data.data() + 24, DType::kBFloat16, {1, 4, 6})};
  for (const char* rule : {"int8_per_token", "int4_dynamic", "mx_round_up_e4m3", "mx_floor_e2m1"}) {
    auto whole = quantise_linear(all, rule), want = quantise_linear(second, rule);
    ASSERT_TRUE(whole && want);
    const LinearWeights cut = expert_range((*whole)->weights(), 1, 1);
    EXPECT_EQ(dequantised(cut, rule), dequantised((*want)->weights(), rule)) << rule;
    ASSERT_EQ(cut.bias.size(), (*want)->weights().bias.size());
    if (cut.bias.empty()) continue;
    EXPECT_EQ(std::memcmp(cut.bias[0].data, (*want)->weights().bias[0].data, 4 * sizeof(float)), 0);
  }
}

TEST(Quantise, Refuses) {
  EXPECT_EQ(quantise_linear({}, "int8_static").status().message(),
            "quantise: no weights: expected at least one tensor");
  const uint16_t values[6] = {};
  LinearWeights odd;
  odd.weight = {TensorView(values, DType::kBFloat16, {3, 2})};
  EXPECT_EQ(quantise_linear(odd, "int4_dynamic").status().message(),
            "quantise: weights have a reduction of 3: expected an even one with int4");
  EXPECT_EQ(quantise_linear(odd, "fp8_block128_e4m3").status().message(),
            "quantise: rule = fp8_block128_e4m3: expected one with float32 scales of whole rows or with E8M0 "
            "scales");

  EXPECT_FALSE(quantise_linear({}, "int8_per_token"));
  const int8_t codes[4] = {};
  LinearWeights weights;
  weights.weight = {TensorView(codes, DType::kInt8, {2, 2})};
  EXPECT_EQ(quantise_linear(weights, "int8_per_token").status().code(), Code::kInvalidType);
}

// Each group of a channel is a row of the rule: its largest weight is code 7 or -7 of its own scale.
TEST(QuantiseInt4Groups, EachGroupHasItsScale) {
  constexpr int64_t kDepth = 72, kChannels = 3;  // groups of 32, 32 and 8
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < kChannels * kDepth; ++i) {
    const float size = static_cast<float>(1 + i % kDepth / 32);
    values.push_back(format::bf16_from_float(i % 2 == 0 ? size : -size / 2));
  }
  LinearWeights weights;
  weights.k_last = true;
  weights.weight = {TensorView(values.data(), DType::kBFloat16, {1, kChannels, kDepth})};
  auto made = quantise_int4_groups(weights, 32);
  ASSERT_TRUE(made) << made.status().message();
  const LinearWeights& result = (*made)->weights();
  EXPECT_EQ(result.scale_group, 32);
  ASSERT_EQ(result.scale[0].shape_text(), "(1, 3, 3)");
  const auto* scales = static_cast<const float*>(result.scale[0].data);
  const auto* codes = static_cast<const uint8_t*>(result.weight[0].data);
  for (int64_t c = 0; c < kChannels; ++c) {
    for (int64_t g = 0; g < 3; ++g) EXPECT_FLOAT_EQ(scales[c * 3 + g], static_cast<float>(1 + g) / 7);
    for (int64_t k = 0; k < kDepth; k += 2) EXPECT_EQ(codes[(c * kDepth + k) / 2], 0xc7) << k;  // 7 and -4
  }
  EXPECT_EQ(quantise_int4_groups(weights, 40).status().message(),
            "quantise: group = 40: expected 32, 64 or 128");
}

// 130 channels x 200 k: four blocks, each with the scale of its largest weight, which becomes 448.
TEST(QuantiseE4m3Blocks, EachBlockHasItsScale) {
  constexpr int64_t kChannels = 130, kDepth = 200;
  std::vector<uint16_t> gate, up;
  for (int64_t c = 0; c < kChannels; ++c) {
    for (int64_t k = 0; k < kDepth; ++k) {
      const auto block = static_cast<float>(1 + c / 128 * 2 + k / 128);
      const float weight = k % 128 == 7 && c % 128 == 1 ? -block : block / 4 * (k % 2 == 0 ? 1.0f : 0.9f);
      (c < kChannels / 2 ? gate : up).push_back(format::bf16_from_float(c >= 128 && k >= 128 ? 0 : weight));
    }
  }
  LinearWeights weights;
  weights.k_last = true;
  weights.weight = {TensorView(gate.data(), DType::kBFloat16, {1, kChannels / 2, kDepth})};
  weights.up = {TensorView(up.data(), DType::kBFloat16, {1, kChannels / 2, kDepth})};
  auto made = quantise_e4m3_blocks(weights);
  ASSERT_TRUE(made) << made.status().message();
  const LinearWeights& result = (*made)->weights();
  EXPECT_EQ(result.scale_group, 128);
  EXPECT_TRUE(result.k_last && result.up.empty());
  ASSERT_EQ(result.scale[0].shape_text(), "(1, 2, 2)");
  ASSERT_EQ(result.weight[0].shape_text(), "(1, 130, 200)");
  const auto* scales = static_cast<const float*>(result.scale[0].data);
  EXPECT_EQ(scales[0], 1.0f / 448);
  EXPECT_EQ(scales[1], 2.0f / 448);
  EXPECT_EQ(scales[2], 3.0f / 448);
  EXPECT_EQ(scales[3], 1.0f);  // all zero
  const auto* codes = static_cast<const uint8_t*>(result.weight[0].data);
  EXPECT_EQ(codes[1 * kDepth + 7], 0xfe);  // -448
  EXPECT_EQ(codes[0], 0x6e);               // 112
  EXPECT_EQ(codes[1], 0x6d);               // about 101, of 96 and 104
  EXPECT_EQ(codes[129 * kDepth + 7], 0xfe);
  EXPECT_EQ(codes[129 * kDepth + 130], 0);
  EXPECT_FALSE(quantise_e4m3_blocks({}));
}

}  // namespace
}  // namespace megamoe::checkpoint
