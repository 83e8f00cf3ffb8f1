// Per-channel int8 quantisation of checkpoint weights.
#include "checkpoint/quantise.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "format/bf16.h"

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
  auto result = quantise_int8(weights);
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
  auto result = quantise_int8(weights);
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
  auto want = quantise_int8(whole);
  ASSERT_TRUE(want);
  for (const LinearWeights& weights : {apart, turned}) {
    auto got = quantise_int8(weights);
    ASSERT_TRUE(got) << got.status().message();
    EXPECT_EQ(std::memcmp((*got)->weights().weight[0].data, (*want)->weights().weight[0].data, 60), 0);
    EXPECT_EQ(std::memcmp((*got)->weights().scale[0].data, (*want)->weights().scale[0].data, 12 * 4), 0);
  }
}

TEST(Quantise, Refuses) {
  EXPECT_FALSE(quantise_int8({}));
  const int8_t codes[4] = {};
  LinearWeights weights;
  weights.weight = {TensorView(codes, DType::kInt8, {2, 2})};
  EXPECT_EQ(quantise_int8(weights).status().code(), Code::kInvalidType);
}

}  // namespace
}  // namespace megamoe::checkpoint
