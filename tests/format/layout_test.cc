// Conversions between layouts: every type both ways, padding, strides and refusals.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "format/fractal.h"
#include "format/packed.h"
#include "megamoe/quantise.h"

namespace megamoe {
namespace {

constexpr DType kTypes[] = {DType::kFloat32,    DType::kFloat16,    DType::kBFloat16,   DType::kInt8,
                            DType::kInt4,       DType::kInt32,      DType::kUInt8,      DType::kFloat8E4M3,
                            DType::kFloat8E5M2, DType::kFloat4E2M1, DType::kFloat8E8M0, DType::kHiFloat8};

size_t bytes_of(DType dtype, int64_t elements) {
  return static_cast<size_t>(elements * dtype_bits(dtype) / 8);
}

std::vector<uint8_t> random_bytes(size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

TEST(Layout, EveryTypeBothWays) {
  for (DType dtype : kTypes) {
    for (Layout layout : {Layout::kFractalNz, Layout::kFractalNzC0_32}) {
      const int64_t c0 = format::fractal_c0(dtype, layout);
      if (c0 == 0) continue;
      const int64_t matrices = 2, rows = 19, cols = c0 * 2 + 6;
      const format::Fractal fractal{rows, cols, c0};
      const std::vector<uint8_t> x = random_bytes(bytes_of(dtype, matrices * rows * cols));
      std::vector<uint8_t> y(bytes_of(dtype, matrices * fractal.elements()), 0xa5), back(x.size(), 0xa5);
      const TensorView plain(x.data(), dtype, {matrices, rows, cols});
      ASSERT_TRUE(convert_layout(plain, TensorRef(y.data(), dtype, {matrices, rows, cols}, layout)));
      // Every element at its place, everything else zero.
      const int bits = dtype_bits(dtype);
      int64_t set = 0;
      for (int64_t m = 0; m < matrices; ++m) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const uint32_t want = format::read_code(x.data(), bits, (m * rows + r) * cols + c);
            ASSERT_EQ(format::read_code(y.data(), bits, m * fractal.elements() + fractal.offset(r, c)), want)
                << dtype_name(dtype) << " " << m << " " << r << " " << c;
            set += want != 0;
          }
        }
      }
      for (int64_t i = 0; i < matrices * fractal.elements(); ++i)
        set -= format::read_code(y.data(), bits, i) != 0;
      EXPECT_EQ(set, 0) << "padding of " << dtype_name(dtype);
      const TensorView stored(y.data(), dtype, {matrices, rows, cols}, layout);
      ASSERT_TRUE(convert_layout(stored, TensorRef(back.data(), dtype, {matrices, rows, cols})));
      EXPECT_EQ(back, x) << dtype_name(dtype) << " " << layout_name(layout);
    }
  }
}

TEST(Layout, StorageShapesAndNames) {
  using Shape = std::array<int64_t, 4>;
  const auto shape = [](DType dtype, Layout layout, int64_t rows, int64_t columns) {
    return fractal_storage_shape(dtype, layout, rows, columns);
  };
  EXPECT_EQ(*shape(DType::kBFloat16, Layout::kFractalNz, 19, 70), (Shape{5, 2, 16, 16}));
  EXPECT_EQ(*shape(DType::kInt4, Layout::kFractalNz, 16, 64), (Shape{1, 1, 16, 64}));
  EXPECT_EQ(*shape(DType::kFloat4E2M1, Layout::kFractalNzC0_32, 17, 64), (Shape{2, 2, 16, 32}));
  EXPECT_EQ(*shape(DType::kFloat32, Layout::kFractalNz, 0, 0), (Shape{0, 0, 16, 8}));
  EXPECT_FALSE(shape(DType::kFloat32, Layout::kFractalNzC0_32, 1, 1));
  EXPECT_FALSE(shape(DType::kInt64, Layout::kFractalNz, 1, 1));
  EXPECT_FALSE(shape(DType::kInt8, Layout::kNd, 1, 1));
  EXPECT_FALSE(shape(DType::kInt8, Layout::kFractalNz, -1, 1));
  EXPECT_FALSE(shape(DType::kInt8, Layout::kFractalNz, 1, INT64_MAX));
  for (Layout layout : {Layout::kNd, Layout::kFractalNz, Layout::kFractalNzC0_32}) {
    EXPECT_EQ(*layout_from_name(layout_name(layout)), layout);
  }
  EXPECT_EQ(layout_from_name("NZ").status().message(),
            "layout NZ is unknown: expected one of ND, FRACTAL_NZ, FRACTAL_NZ_C0_32");
}

TEST(Layout, BetweenFractals) {
  const std::vector<uint8_t> x = random_bytes(bytes_of(DType::kFloat4E2M1, 33 * 70));
  auto storage = [](int64_t c0) {
    return std::vector<uint8_t>(bytes_of(DType::kFloat4E2M1, format::Fractal{33, 70, c0}.elements()));
  };
  std::vector<uint8_t> wide = storage(64), narrow = storage(32), direct = storage(32);
  auto at = [](std::vector<uint8_t>& bytes, Layout layout) {
    return TensorRef(bytes.data(), DType::kFloat4E2M1, {33, 70}, layout);
  };
  const TensorView plain(x.data(), DType::kFloat4E2M1, {33, 70});
  ASSERT_TRUE(convert_layout(plain, at(wide, Layout::kFractalNz)));
  ASSERT_TRUE(convert_layout(view(at(wide, Layout::kFractalNz)), at(narrow, Layout::kFractalNzC0_32)));
  ASSERT_TRUE(convert_layout(plain, at(direct, Layout::kFractalNzC0_32)));
  EXPECT_EQ(narrow, direct);
}

TEST(Layout, Int32WordsHoldTheBytesOfInt4) {
  const std::vector<uint8_t> x = random_bytes(bytes_of(DType::kInt4, 20 * 96));
  const size_t stored = bytes_of(DType::kInt4, format::Fractal{20, 96, 64}.elements());
  std::vector<uint8_t> nibbles(stored, 1), words(stored, 2);
  ASSERT_TRUE(convert_layout(TensorView(x.data(), DType::kInt4, {20, 96}),
                             TensorRef(nibbles.data(), DType::kInt4, {20, 96}, Layout::kFractalNz)));
  ASSERT_TRUE(convert_layout(TensorView(x.data(), DType::kInt32, {20, 12}),
                             TensorRef(words.data(), DType::kInt32, {20, 12}, Layout::kFractalNz)));
  EXPECT_EQ(nibbles, words);
}

TEST(Layout, StridesOfPlainTensors) {
  std::vector<uint16_t> x(5 * 40);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i + 1);
  TensorView transposed(x.data(), DType::kBFloat16, {40, 5});
  transposed.strides[0] = 1;
  transposed.strides[1] = 40;
  std::vector<uint16_t> stored(static_cast<size_t>(format::Fractal{40, 5, 16}.elements())), y(5 * 40);
  ASSERT_TRUE(
      convert_layout(transposed, TensorRef(stored.data(), DType::kBFloat16, {40, 5}, Layout::kFractalNz)));
  TensorRef back(y.data(), DType::kBFloat16, {40, 5});
  back.strides[0] = 1;
  back.strides[1] = 40;
  ASSERT_TRUE(convert_layout(TensorView(stored.data(), DType::kBFloat16, {40, 5}, Layout::kFractalNz), back));
  EXPECT_EQ(x, y);
}

TEST(Layout, Refusals) {
  std::vector<uint8_t> memory(4096);
  auto message = [&](DType dtype, std::initializer_list<int64_t> shape, Layout from, Layout to) {
    return convert_layout(TensorView(memory.data(), dtype, shape, from),
                          TensorRef(memory.data(), dtype, shape, to))
        .message();
  };
  EXPECT_EQ(message(DType::kInt8, {4, 4}, Layout::kNd, Layout::kFractalNzC0_32),
            "y has layout FRACTAL_NZ_C0_32: expected one that is defined for int8");
  EXPECT_EQ(message(DType::kInt64, {4, 4}, Layout::kFractalNz, Layout::kNd),
            "x has layout FRACTAL_NZ: expected one that is defined for int64");
  EXPECT_EQ(message(DType::kInt4, {4, 5}, Layout::kNd, Layout::kFractalNz),
            "x has shape (4, 5): expected an even last extent for int4");
  EXPECT_EQ(message(DType::kInt8, {4}, Layout::kNd, Layout::kFractalNz),
            "x has shape (4,): expected a matrix or a stack of matrices");
  EXPECT_EQ(convert_layout(TensorView{}, TensorRef{}).message(), "x is missing: expected a tensor");
  EXPECT_EQ(convert_layout(TensorView(memory.data(), DType::kInt8, {4, 4}),
                           TensorRef(memory.data(), DType::kUInt8, {4, 4}, Layout::kFractalNz))
                .message(),
            "y has type uint8: expected int8");
  EXPECT_EQ(convert_layout(TensorView(memory.data(), DType::kInt8, {4, 4}),
                           TensorRef(memory.data(), DType::kInt8, {4, 3}, Layout::kFractalNz))
                .message(),
            "y has shape (4, 3): expected (4, 4)");
  EXPECT_TRUE(convert_layout(TensorView(nullptr, DType::kInt8, {0, 4}),
                             TensorRef(nullptr, DType::kInt8, {0, 4}, Layout::kFractalNz)));
}

}  // namespace
}  // namespace megamoe
