// Wrong weights and scales: the error names the argument, what came and what was expected.
#include <gtest/gtest.h>

#include "pack/panel_source.h"

namespace megamoe {
namespace {

alignas(64) char memory[16];

TensorView tensor(DType dtype, std::initializer_list<int64_t> shape, Layout layout = Layout::kNd) {
  return TensorView(memory, dtype, shape, layout);
}

LinearWeights bf16(std::initializer_list<int64_t> shape) {
  LinearWeights w;
  w.weight = {tensor(DType::kBFloat16, shape)};
  return w;
}

LinearWeights int8() {
  LinearWeights w;
  w.weight = {tensor(DType::kInt8, {4, 8, 6})};
  w.scale = {tensor(DType::kUInt64, {4, 6})};
  return w;
}

void expect_error(const LinearWeights& w, bool gated, Code code, const std::string& message,
                  const char* name = "weight1") {
  auto result = pack::check_linear(w, gated, name);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.status().code(), code);
  EXPECT_EQ(result.status().message(), message);
}

TEST(CheckLinear, Accepts) {
  auto g = pack::check_linear(int8(), true, "weight1");
  ASSERT_TRUE(g) << g.status().message();
  EXPECT_EQ(g->experts, 4);
  EXPECT_EQ(g->k, 8);
  EXPECT_EQ(g->n, 6);
  EXPECT_EQ(g->outputs(), 3);
  LinearWeights last = bf16({4, 6, 8});
  last.k_last = true;
  g = pack::check_linear(last, false, "weight2");
  ASSERT_TRUE(g) << g.status().message();
  EXPECT_EQ(g->k, 8);
  EXPECT_EQ(g->n, 6);
}

TEST(CheckLinear, GateAndUpColumnsInTurn) {
  LinearWeights w = bf16({4, 8, 12});
  for (const int64_t together : {1, 2, 3, 6}) {
    w.interleave = together;
    auto g = pack::check_linear(w, true, "weight1");
    ASSERT_TRUE(g) << g.status().message();
    EXPECT_EQ(g->interleave, together);
  }
  for (const int64_t together : {-1, 4, 12}) {
    w.interleave = together;
    expect_error(w, true, Code::kInvalidArgument,
                 "weight1_interleave = " + std::to_string(together) +
                     ": expected 0 or a divisor of 6, the gate columns");
  }
  w.interleave = 1;
  expect_error(w, false, Code::kInvalidArgument,
               "shared_weight2_interleave = 1: expected 0 without gate and up columns", "shared_weight2");
  w.up = w.weight;
  expect_error(w, true, Code::kInvalidArgument,
               "weight1_interleave = 1: expected 0 with separate up tensors");
}

TEST(CheckLinear, AddedBiases) {
  LinearWeights w = int8();
  w.added_bias = {tensor(DType::kFloat32, {4, 6})};
  expect_error(
      w, true, Code::kInvalidArgument,
      "added_bias1 has 1 tensors: expected none without int4 weights with a scale per channel, use bias1");
  w.weight = {tensor(DType::kInt4, {4, 8, 6})};
  auto g = pack::check_linear(w, true, "weight1");
  ASSERT_TRUE(g) << g.status().message();
  EXPECT_TRUE(g->has_added_bias);
  w.added_bias = {tensor(DType::kFloat32, {4, 7})};
  expect_error(w, true, Code::kInvalidArgument, "shared_added_bias1 has shape (4, 7): expected (4, 6)",
               "shared_weight1");
}

TEST(CheckLinear, PairsOfNibbles) {
  LinearWeights w;
  w.scale = {tensor(DType::kFloat32, {4, 6})};
  w.weight = {tensor(DType::kInt4, {4, 8, 6})};
  ASSERT_TRUE(pack::check_linear(w, true, "weight1"));
  const std::string expected =
      ": expected an even last dimension without gaps, in rows of whole bytes, with int4";
  w.weight[0].strides[1] = 7;
  expect_error(w, true, Code::kInvalidArgument, "weight1 has shape (4, 8, 6)" + expected);
  w.weight[0].set_contiguous();
  w.weight[0].strides[0] = 49;
  expect_error(w, true, Code::kInvalidArgument, "weight1 has shape (4, 8, 6)" + expected);
  w.weight = {tensor(DType::kInt4, {4, 8, 1})};
  expect_error(w, false, Code::kInvalidArgument, "weight1 has shape (4, 8, 1)" + expected);
}

// int32 words that cannot be seen as int4: nothing is read past the dimensions, no product wraps around.
TEST(CheckLinear, WordsOfNibbles) {
  LinearWeights w;
  w.scale = {tensor(DType::kFloat32, {4, 8})};
  w.weight = {tensor(DType::kInt32, {4, 8, 1})};
  ASSERT_TRUE(pack::check_linear(w, true, "weight1"));
  w.weight[0].shape[2] = (int64_t{1} << 61) + 1;  // times 8 is 8 in 64 bits
  expect_error(w, true, Code::kInvalidArgument,
               "weight1 has strides (8, 1, 1): expected elements within 2^56 bytes");
  const std::string got = "weight1 has type int32: expected bfloat16, ";
  w.weight[0].set_contiguous();
  for (const bool many : {false, true}) {
    if (many) w.weight[0].dims = 1000;
    auto result = pack::check_linear(w, true, "weight1");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.status().message().rfind(got, 0), 0u) << result.status().message();
  }
}

TEST(CheckLinear, Tensors) {
  expect_error({}, true, Code::kInvalidArgument,
               "weight1 has no tensors: expected one stacked tensor or one per local expert");
  LinearWeights w;
  w.weight = {tensor(DType::kFloat32, {4, 8, 6})};
  expect_error(w, true, Code::kInvalidType,
               "weight1 has type float32: expected bfloat16, int8, int4, float8_e4m3fn, float8_e5m2, "
               "float4_e2m1 or int32 (eight int4)");
  w.weight = {tensor(DType::kBFloat16, {8, 6}), tensor(DType::kInt8, {8, 6})};
  expect_error(w, true, Code::kInvalidType, "weight1[1] has type int8: expected bfloat16 like weight1[0]");
  w.weight[1] = tensor(DType::kBFloat16, {8, 5});
  expect_error(w, true, Code::kInvalidArgument,
               "weight1[1] has shape (8, 5): expected (8, 6) like weight1[0]");
  w.weight[1] = tensor(DType::kBFloat16, {2, 8, 6});
  expect_error(w, true, Code::kInvalidArgument,
               "weight1[1] has shape (2, 8, 6): expected 2 dimensions (K, N) in a list of tensors");
  w.weight[1] = tensor(DType::kBFloat16, {8, 6}, Layout::kFractalNz);
  expect_error(w, true, Code::kInvalidArgument,
               "weight1[1] has layout FRACTAL_NZ: expected ND like weight1[0]");
  w.weight = {tensor(DType::kBFloat16, {8, 6}, Layout::kFractalNzC0_32)};
  expect_error(w, true, Code::kInvalidArgument,
               "weight1 has layout FRACTAL_NZ_C0_32: expected ND or FRACTAL_NZ with bfloat16");
  expect_error(bf16({8}), true, Code::kInvalidArgument,
               "weight1 has shape (8,): expected (E, K, N) or (K, N)");
  expect_error(bf16({4, 0, 6}), true, Code::kInvalidArgument,
               "weight1 has shape (4, 0, 6): expected sizes of at least 1");
  w.weight = {TensorView(nullptr, DType::kBFloat16, {8, 6})};
  expect_error(w, true, Code::kInvalidArgument, "weight1 has no data: expected memory of shape (8, 6)");
}

TEST(CheckLinear, Sizes) {
  expect_error(bf16({4, 8, 7}), true, Code::kInvalidArgument,
               "weight1 has shape (4, 8, 7): expected an even N, gate and up columns side by side");
  EXPECT_TRUE(pack::check_linear(bf16({4, 8, 7}), false, "weight2"));
  LinearWeights w = int8();
  w.weight = {tensor(DType::kInt8, {4, 131072, 6})};
  expect_error(
      w, true, Code::kInvalidArgument,
      "weight1 has shape (4, 131072, 6): expected K of at most 131071 with integer weights, so that sums fit "
      "into 32 bits");
  expect_error(bf16({int64_t{1} << 40, 1 << 20, 1 << 20}), true, Code::kInvalidArgument,
               "weight1 has shape (1099511627776, 1048576, 1048576): expected a size in bytes below 2^63");
}

TEST(CheckLinear, Scales) {
  LinearWeights w = bf16({4, 8, 6});
  w.scale = {tensor(DType::kFloat32, {4, 6})};
  expect_error(w, true, Code::kInvalidArgument,
               "weight_scales1 has 1 tensors: expected none with bfloat16 weights");
  w = int8();
  w.scale.clear();
  expect_error(w, false, Code::kInvalidArgument,
               "weight_scales2 has no tensors: expected uint64 or float32 (4, 6) with int8 weights",
               "weight2");
  w.scale = {tensor(DType::kBFloat16, {4, 6})};
  expect_error(w, true, Code::kInvalidType, "weight_scales1 has type bfloat16: expected uint64 or float32");
  w.scale = {tensor(DType::kFloat32, {6, 4})};
  expect_error(w, true, Code::kInvalidArgument, "weight_scales1 has shape (6, 4): expected (4, 6)");
  w.scale = {tensor(DType::kFloat32, {6}), tensor(DType::kFloat32, {6})};
  expect_error(w, true, Code::kInvalidArgument,
               "weight_scales1 has 2 tensors: expected one of shape (4, 6) or 4 of shape (6,)");
  w.scale.assign(4, tensor(DType::kFloat32, {6}));
  EXPECT_TRUE(pack::check_linear(w, true, "weight1"));
  w.scale[2] = tensor(DType::kFloat32, {5});
  expect_error(w, true, Code::kInvalidArgument, "weight_scales1[2] has shape (5,): expected (6,)");
}

TEST(CheckLinear, SeparateUp) {
  LinearWeights w = bf16({8, 3});
  w.up = w.weight;
  auto g = pack::check_linear(w, true, "weight1");
  ASSERT_TRUE(g) << g.status().message();
  EXPECT_EQ(g->n, 6);
  expect_error(w, false, Code::kInvalidArgument,
               "weight1 has separate up tensors: expected none without a gated activation");
  w.up = {tensor(DType::kBFloat16, {8, 4})};
  expect_error(w, true, Code::kInvalidArgument,
               "weight1.up has 1 tensors of shape (8, 4): expected 1 of shape (8, 3) like the gate tensors");
  w.up = {tensor(DType::kInt8, {8, 3})};
  expect_error(w, true, Code::kInvalidType,
               "weight1.up has type int8: expected bfloat16 like the gate tensors");
}

TEST(CheckLinear, PackReportsTheSameErrorsAndBadThreads) {
  EXPECT_EQ(PackedWeights::pack_linear1(bf16({4, 8, 7})).status().message(),
            "weight1 has shape (4, 8, 7): expected an even N, gate and up columns side by side");
  EXPECT_EQ(PackedWeights::pack_linear2({}).status().message(),
            "weight2 has no tensors: expected one stacked tensor or one per local expert");
  EXPECT_EQ(PackedWeights::pack_linear2(bf16({4, 8, 7}), -1).status().message(),
            "threads = -1: expected 0 (automatic) or a number up to 4096");
}

}  // namespace
}  // namespace megamoe
