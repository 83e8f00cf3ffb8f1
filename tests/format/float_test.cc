// bfloat16 and float16 conversions against their definitions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "format/bf16.h"
#include "format/float16.h"

namespace megamoe::format {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Nearest code of a positive finite value by search over neighbours, ties to the even code.
template <class ToFloat>
uint16_t nearest(double value, uint16_t first_infinite, ToFloat to_float) {
  uint16_t low = 0;
  uint16_t high = static_cast<uint16_t>(first_infinite - 1);
  while (low < high) {
    const uint16_t middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (to_float(middle) <= value) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  // The step above the largest finite value is as wide as the one below it.
  const double below = to_float(low);
  const double above = low + 1 == first_infinite ? below + (below - to_float(static_cast<uint16_t>(low - 1)))
                                                 : to_float(static_cast<uint16_t>(low + 1));
  if (value - below < above - value) return low;
  if (value - below > above - value) return static_cast<uint16_t>(low + 1);
  return low % 2 == 0 ? low : static_cast<uint16_t>(low + 1);
}

TEST(Float16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float value = f16_to_float(static_cast<uint16_t>(code));
    if ((code & 0x7fff) > 0x7c00) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(f16_to_float(f16_from_float(value)))) << code;
    } else {
      EXPECT_EQ(f16_from_float(value), code);
    }
  }
}

TEST(Float16, DecodesKnownCodes) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc000), -2.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x7c00), kInfinity);
  EXPECT_TRUE(std::signbit(f16_to_float(0x8000)));
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(f16_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(f16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_float(-kInfinity), 0xfc00);
  EXPECT_EQ(f16_from_float(0x1p-25f), 0);
  EXPECT_EQ(f16_from_float(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(f16_from_float(-0x1p-149f), 0x8000);
  for (uint32_t bits = 1; bits < 0x477ff000u; bits += 9973) {
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(f16_from_float(value), nearest(value, 0x7c00, f16_to_float)) << value;
  }
  // Every midpoint between neighbours, and the floats around it.
  for (uint16_t code = 0; code < 0x7bff; ++code) {
    const float middle =
        static_cast<float>((double{f16_to_float(code)} + f16_to_float(static_cast<uint16_t>(code + 1))) / 2);
    for (float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity)}) {
      ASSERT_EQ(f16_from_float(value), nearest(value, 0x7c00, f16_to_float)) << value;
    }
  }
}

TEST(BFloat16, EveryCodeSurvivesTheRoundTrip) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float value = bf16_to_float(static_cast<uint16_t>(code));
    if ((code & 0x7fff) > 0x7f80) {
      EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(value)))) << code;
    } else {
      EXPECT_EQ(bf16_from_float(value), code);
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.00390625f), 0x3f80);  // halfway, lower neighbour even
  EXPECT_EQ(bf16_from_float(1.01171875f), 0x3f82);  // halfway, upper neighbour even
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_float(0x1p-149f), 0);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x7f800001u)) & 0x7fff, 0x7fc0);
  for (uint32_t bits = 1; bits < 0x7f7f0000u; bits += 99991) {
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(bf16_from_float(value), nearest(value, 0x7f80, bf16_to_float)) << value;
  }
}

}  // namespace
}  // namespace megamoe::format
