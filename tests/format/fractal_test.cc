// Offsets of the fractal layouts.
#include "format/fractal.h"

#include <gtest/gtest.h>

#include <set>

namespace megamoe::format {
namespace {

TEST(Fractal, InnerRowIs32BytesUnlessForced) {
  EXPECT_EQ(fractal_c0(DType::kBFloat16, Layout::kFractalNz), 16);
  EXPECT_EQ(fractal_c0(DType::kFloat16, Layout::kFractalNz), 16);
  EXPECT_EQ(fractal_c0(DType::kInt8, Layout::kFractalNz), 32);
  EXPECT_EQ(fractal_c0(DType::kFloat8E4M3, Layout::kFractalNz), 32);
  EXPECT_EQ(fractal_c0(DType::kInt4, Layout::kFractalNz), 64);
  EXPECT_EQ(fractal_c0(DType::kFloat4E2M1, Layout::kFractalNz), 64);
  EXPECT_EQ(fractal_c0(DType::kFloat4E2M1, Layout::kFractalNzC0_32), 32);
  EXPECT_EQ(fractal_c0(DType::kFloat32, Layout::kFractalNz), 8);
  EXPECT_EQ(fractal_c0(DType::kInt8, Layout::kFractalNzC0_32), 0);
  EXPECT_EQ(fractal_c0(DType::kInt64, Layout::kFractalNz), 0);
  EXPECT_EQ(fractal_c0(DType::kBFloat16, Layout::kNd), 0);
  EXPECT_EQ(fractal_c0(DType::kUndefined, Layout::kFractalNz), 0);
}

TEST(Fractal, OffsetsByHand) {
  constexpr Fractal fractal{36, 100, 32};
  EXPECT_EQ(fractal.storage_shape(), (std::array<int64_t, 4>{4, 3, 16, 32}));
  EXPECT_EQ(fractal.elements(), 4 * 3 * 16 * 32);
  EXPECT_EQ(fractal.offset(0, 0), 0);
  EXPECT_EQ(fractal.offset(0, 31), 31);
  EXPECT_EQ(fractal.offset(1, 0), 32);
  EXPECT_EQ(fractal.offset(16, 0), 16 * 32);
  EXPECT_EQ(fractal.offset(0, 32), 48 * 32);
  EXPECT_EQ(fractal.offset(35, 99), 3 * 48 * 32 + 35 * 32 + 3);
}

TEST(Fractal, EveryElementHasItsOwnPlace) {
  for (const Fractal& fractal :
       {Fractal{1, 1, 16}, Fractal{16, 32, 32}, Fractal{17, 65, 64}, Fractal{33, 7, 8}}) {
    std::set<int64_t> places;
    for (int64_t r = 0; r < fractal.rows; ++r) {
      for (int64_t c = 0; c < fractal.cols; ++c) places.insert(fractal.offset(r, c));
    }
    EXPECT_EQ(static_cast<int64_t>(places.size()), fractal.rows * fractal.cols);
    EXPECT_GE(*places.begin(), 0);
    EXPECT_LT(*places.rbegin(), fractal.elements());
  }
}

TEST(Fractal, OffsetsNeed64Bits) {
  constexpr Fractal fractal{int64_t{1} << 20, int64_t{1} << 20, 32};
  EXPECT_EQ(fractal.offset(fractal.rows - 1, fractal.cols - 1), (int64_t{1} << 40) - 1);
}

}  // namespace
}  // namespace megamoe::format
