// Conversion to int8.
#include "format/int8.h"

#include <gtest/gtest.h>

#include <limits>

namespace megamoe::format {
namespace {

TEST(Int8, RoundsHalfToEven) {
  const float values[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 0.49999997f, -126.5f};
  const int expected[] = {0, 2, 2, 0, -2, -2, 126, 0, -126};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(int8_from_float(values[i]), expected[i]) << values[i];
}

TEST(Int8, Saturates) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(int8_from_float(127.5f), 127);
  EXPECT_EQ(int8_from_float(kInfinity), 127);
  EXPECT_EQ(int8_from_float(-128.5f), -128);
  EXPECT_EQ(int8_from_float(-1e30f), -128);
  EXPECT_EQ(int8_from_float(std::numeric_limits<float>::quiet_NaN()), 0);
}

}  // namespace
}  // namespace megamoe::format
