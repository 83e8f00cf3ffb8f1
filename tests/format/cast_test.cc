// Casts of tensors: strides, packed types, the int4 view and refusals.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "megamoe/quantise.h"

namespace megamoe {
namespace {

TEST(Cast, StridesAndPackedRows) {
  // Columns of x run downwards; y has a gap after each row.
  const float x[6] = {1, -0.75f, 6, 2, 100, -0.0f};
  TensorView view(x, DType::kFloat32, {2, 3});
  view.strides[0] = 1;
  view.strides[1] = 2;
  std::array<uint8_t, 5> y;
  y.fill(0xee);
  TensorRef ref(y.data(), DType::kFloat4E2M1, {2, 3});
  ref.strides[0] = 4;
  ASSERT_TRUE(cast(view, ref));
  // Rows 1 6 100 and -0.75 2 -0.
  EXPECT_EQ(y[0], 0x72);
  EXPECT_EQ(y[1], 0xe7);
  EXPECT_EQ(y[2], 0x4a);
  EXPECT_EQ(y[3], 0xe8);
  EXPECT_EQ(y[4], 0xee);
}

TEST(Cast, SaturatesOnRequest) {
  const float x[3] = {1e9f, -std::numeric_limits<float>::infinity(), std::nanf("")};
  uint8_t y[3];
  ASSERT_TRUE(cast(TensorView(x, DType::kFloat32, {3}), TensorRef(y, DType::kFloat8E5M2, {3})));
  EXPECT_EQ(std::vector<int>(y, y + 3), (std::vector<int>{0x7b, 0xfb, 0}));
  ASSERT_TRUE(cast(TensorView(x, DType::kFloat32, {3}), TensorRef(y, DType::kFloat8E5M2, {3}), false));
  EXPECT_EQ(y[0], 0x7c);
  EXPECT_EQ(y[1], 0xfc);
  EXPECT_GT(y[2] & 0x7f, 0x7c);
  float back[3];
  ASSERT_TRUE(cast(TensorView(y, DType::kFloat8E5M2, {3}), TensorRef(back, DType::kFloat32, {3})));
  EXPECT_EQ(back[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(back[2]));
}

TEST(Cast, Int4View) {
  const int32_t words[2] = {static_cast<int32_t>(0x87654321u), 0x0f};
  Result<TensorView> nibbles = int4_view(TensorView(words, DType::kInt32, {2, 1}));
  ASSERT_TRUE(nibbles);
  EXPECT_EQ(nibbles->shape_text(), "(2, 8)");
  int8_t y[16];
  ASSERT_TRUE(cast(*nibbles, TensorRef(y, DType::kInt8, {2, 8})));
  EXPECT_EQ(std::vector<int>(y, y + 16),
            (std::vector<int>{1, 2, 3, 4, 5, 6, 7, -8, -1, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(int4_view(TensorView(words, DType::kInt8, {8})).status().message(),
            "words has type int8: expected int32");
  TensorView gaps(words, DType::kInt32, {1, 2});
  gaps.strides[1] = 2;
  EXPECT_EQ(int4_view(gaps).status().message(),
            "words has shape (1, 2): expected a last dimension without gaps between its elements");
}

TEST(Cast, Int32View) {
  alignas(4) uint8_t bytes[24] = {};
  TensorView nibbles(bytes, DType::kInt4, {2, 2, 8});
  nibbles.strides[0] = 24;  // rows of a wider array
  Result<TensorView> words = int32_view(nibbles);
  ASSERT_TRUE(words);
  EXPECT_EQ(words->shape_text(), "(2, 2, 1)");
  EXPECT_EQ(words->dtype, DType::kInt32);
  EXPECT_EQ(words->strides[0], 3);
  EXPECT_EQ(words->strides[1], 1);
  Result<TensorView> back = int4_view(*words);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->shape_text(), "(2, 2, 8)");
  EXPECT_EQ(back->strides[0], 24);

  const std::string expected = ": expected rows of whole, aligned words of 8 elements";
  EXPECT_EQ(int32_view(TensorView(bytes, DType::kInt4, {2, 12})).status().message(),
            "nibbles has shape (2, 12)" + expected);
  EXPECT_EQ(int32_view(TensorView(bytes + 1, DType::kInt4, {1, 8})).status().message(),
            "nibbles has shape (1, 8)" + expected);
  nibbles.strides[0] = 20;
  EXPECT_EQ(int32_view(nibbles).status().message(), "nibbles has shape (2, 2, 8)" + expected);
  EXPECT_EQ(int32_view(TensorView(bytes, DType::kInt8, {8})).status().message(),
            "nibbles has type int8: expected int4");
  const TensorView stored(bytes, DType::kInt4, {16, 16}, Layout::kFractalNz);
  EXPECT_EQ(int32_view(stored)->shape_text(), "(16, 2)");
}

TEST(Cast, Refusals) {
  float x[4] = {};
  uint8_t y[4] = {7, 7, 7, 7};
  const TensorView good(x, DType::kFloat32, {4});
  EXPECT_EQ(cast(TensorView{}, TensorRef(y, DType::kInt8, {4})).message().substr(0, 23),
            "x is missing: expected ");
  EXPECT_EQ(cast(TensorView(x, DType::kInt64, {2}), TensorRef(y, DType::kInt8, {2})).message(),
            "x has type int64: expected float32, float16, bfloat16, int8, int4, float8_e4m3fn, float8_e5m2, "
            "float4_e2m1, "
            "float8_e8m0 or hifloat8");
  EXPECT_EQ(cast(good, TensorRef(y, DType::kInt8, {3})).message(), "y has shape (3,): expected (4,)");
  EXPECT_EQ(cast(good, TensorRef(nullptr, DType::kInt8, {4})).message(),
            "y = null: expected memory of shape (4,)");
  TensorRef strided(y, DType::kFloat4E2M1, {4});
  strided.strides[0] = 2;
  EXPECT_EQ(cast(good, strided).message(),
            "y has stride 2 in its last dimension: expected 1 for float4_e2m1");
  EXPECT_EQ(cast(good, TensorRef(y, DType::kInt8, {4}, Layout::kFractalNz)).message(),
            "y has layout FRACTAL_NZ: expected ND");
  EXPECT_EQ(cast(TensorView(x, DType::kFloat32, {-1}), TensorRef(y, DType::kInt8, {-1})).message(),
            "x has shape (-1,): expected extents of 0 or more");
  EXPECT_EQ(std::vector<int>(y, y + 4), (std::vector<int>{7, 7, 7, 7}));
  EXPECT_TRUE(cast(TensorView(nullptr, DType::kFloat32, {0, 4}), TensorRef(nullptr, DType::kInt8, {0, 4})));
}

}  // namespace
}  // namespace megamoe
