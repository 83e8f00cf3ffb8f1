// int8_per_token: ties, zero and subnormal rows, NaN, strides, errors.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "megamoe/reference.h"
#include "world.h"

namespace megamoe::reference {
namespace {

struct Quantised {
  std::vector<int8_t> codes;
  float scale = -1;
};

Quantised quantise(const std::vector<float>& row) {
  Quantised q;
  const int64_t n = static_cast<int64_t>(row.size());
  q.codes.assign(row.size(), 99);
  const Status status = int8_per_token(TensorView(row.data(), DType::kFloat32, {1, n}),
                                       TensorRef(q.codes.data(), DType::kInt8, {1, n}),
                                       TensorRef(&q.scale, DType::kFloat32, {1}));
  EXPECT_TRUE(status) << status.message();
  return q;
}

using Codes = std::vector<int8_t>;

TEST(Int8PerToken, TiesGoToEven) {
  const Quantised q = quantise({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f});
  EXPECT_EQ(q.scale, 1);
  EXPECT_EQ(q.codes, (Codes{127, 0, 2, 2, 0, -2, -2}));
}

TEST(Int8PerToken, RowsOfNothing) {
  for (const std::vector<float>& row : {std::vector<float>{0, 0, 0}, {-0.0f, -0.0f, -0.0f}, {0, 1e-45f, 0}}) {
    const Quantised q = quantise(row);
    EXPECT_EQ(q.scale, 0);
    EXPECT_EQ(q.codes, (Codes{0, 0, 0}));
  }
}

TEST(Int8PerToken, SubnormalScalesStayInRange) {
  const float unit = 0x1p-149f;
  const Quantised q = quantise({190 * unit, -190 * unit, 64 * unit});  // 190 / 127 rounds to one unit
  EXPECT_EQ(q.scale, unit);
  EXPECT_EQ(q.codes, (Codes{127, -127, 64}));
}

TEST(Int8PerToken, NaNIsCodeZeroAndNotTheMaximum) {
  const Quantised q = quantise({std::numeric_limits<float>::quiet_NaN(), 254, -127});
  EXPECT_EQ(q.scale, 2);
  EXPECT_EQ(q.codes, (Codes{0, 127, -64}));
}

TEST(Int8PerToken, InfinityMakesAnInfiniteScale) {
  const Quantised q = quantise({std::numeric_limits<float>::infinity(), 254});
  EXPECT_EQ(q.scale, std::numeric_limits<float>::infinity());
  EXPECT_EQ(q.codes, (Codes{0, 0}));
}

TEST(Int8PerToken, StridedBfloat16) {
  const std::vector<uint16_t> x = to_bf16({127, 9, 1.5f, 9, 254, 9, -254, 9});
  TensorView view(x.data(), DType::kBFloat16, {2, 2});
  view.strides[0] = 4;
  view.strides[1] = 2;
  std::vector<int8_t> codes(4, 99);
  TensorRef transposed(codes.data(), DType::kInt8, {2, 2});
  transposed.strides[0] = 1;
  transposed.strides[1] = 2;
  std::vector<float> scale(2);
  ASSERT_TRUE(int8_per_token(view, transposed, TensorRef(scale.data(), DType::kFloat32, {2})));
  EXPECT_EQ(codes, (Codes{127, 127, 2, -127}));
  EXPECT_EQ(scale, (std::vector<float>{1, 2}));
}

TEST(Int8PerToken, Errors) {
  std::vector<float> memory(12, 5);
  const TensorView x(memory.data(), DType::kFloat32, {2, 3});
  const TensorRef codes(memory.data(), DType::kInt8, {2, 3});
  const TensorRef scale(memory.data(), DType::kFloat32, {2});
  const auto error = [](const TensorView& a, const TensorRef& b, const TensorRef& c) {
    return int8_per_token(a, b, c).message();
  };
  EXPECT_EQ(error({}, codes, scale), "x is missing: expected bfloat16 or float32");
  EXPECT_EQ(error({memory.data(), DType::kFloat16, {2, 3}}, codes, scale),
            "x has type float16: expected bfloat16 or float32");
  EXPECT_EQ(error({memory.data(), DType::kFloat32, {6}}, codes, scale), "x has shape (6,): expected (*, *)");
  EXPECT_EQ(error({nullptr, DType::kFloat32, {2, 3}}, codes, scale),
            "x = null: expected memory of shape (2, 3)");
  EXPECT_EQ(error({memory.data(), DType::kFloat32, {2, 3}, Layout::kFractalNz}, codes, scale),
            "x has layout FRACTAL_NZ: expected ND");
  EXPECT_EQ(error(x, {memory.data(), DType::kInt8, {3, 2}}, scale),
            "codes has shape (3, 2): expected (2, 3)");
  EXPECT_EQ(error(x, {memory.data(), DType::kUInt8, {2, 3}}, scale), "codes has type uint8: expected int8");
  EXPECT_EQ(error(x, codes, {memory.data(), DType::kFloat32, {3}}), "scale has shape (3,): expected (2,)");
  EXPECT_EQ(error(x, codes, {memory.data(), DType::kInt32, {2}}), "scale has type int32: expected float32");
  EXPECT_EQ(memory, std::vector<float>(12, 5));
}

}  // namespace
}  // namespace megamoe::reference
