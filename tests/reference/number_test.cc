// Codes of the narrow formats and the MX floor rule, against values written down by hand.
#include "reference/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reference/coded_row.h"

namespace megamoe::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float decode(DType type, uint8_t code) {
  return read_number(TensorView(&code, type, {1}), 0);
}

TEST(Number, CodesOfEachFormat) {
  EXPECT_EQ(decode(DType::kFloat8E4M3, 0x7e), 448);
  EXPECT_EQ(decode(DType::kFloat8E4M3, 0x78), 256);
  EXPECT_EQ(decode(DType::kFloat8E4M3, 0x01), 0x1p-9f);
  EXPECT_EQ(decode(DType::kFloat8E4M3, 0xb8), -1);
  EXPECT_TRUE(std::isnan(decode(DType::kFloat8E4M3, 0x7f)));
  EXPECT_TRUE(std::isnan(decode(DType::kFloat8E4M3, 0xff)));
  EXPECT_TRUE(std::signbit(decode(DType::kFloat8E4M3, 0x80)));
  EXPECT_EQ(decode(DType::kFloat8E5M2, 0x7b), 57344);
  EXPECT_EQ(decode(DType::kFloat8E5M2, 0x81), -0x1p-16f);
  EXPECT_EQ(decode(DType::kFloat8E5M2, 0x7c), kInfinity);
  EXPECT_EQ(decode(DType::kFloat8E5M2, 0xfc), -kInfinity);
  EXPECT_TRUE(std::isnan(decode(DType::kFloat8E5M2, 0x7d)));
  const float fp4[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 16; ++code) {
    const float value = fp4[code % 8] * (code < 8 ? 1.0f : -1.0f);
    EXPECT_EQ(decode(DType::kFloat4E2M1, static_cast<uint8_t>(code)), value);
    EXPECT_EQ(decode(DType::kInt4, static_cast<uint8_t>(code)), code < 8 ? code : code - 16);
  }
  EXPECT_EQ(decode(DType::kFloat8E8M0, 0), 0x1p-127f);
  EXPECT_EQ(decode(DType::kFloat8E8M0, 1), 0x1p-126f);
  EXPECT_EQ(decode(DType::kFloat8E8M0, 127), 1);
  EXPECT_EQ(decode(DType::kFloat8E8M0, 254), 0x1p127f);
  EXPECT_TRUE(std::isnan(decode(DType::kFloat8E8M0, 255)));
}

TEST(Number, EvenIndexIsTheLowHalfOfAByte) {
  const uint8_t pairs[] = {0x21, 0xf3};
  const TensorView fp4(pairs, DType::kFloat4E2M1, {4});
  const TensorView int4(pairs, DType::kInt4, {4});
  const float values[] = {0.5f, 1, 1.5f, -6};
  const float integers[] = {1, 2, 3, -1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(read_number(fp4, i), values[i]);
    EXPECT_EQ(read_number(int4, i), integers[i]);
  }
}

// Every value with a code rounds to itself; so do values a little beside it.
TEST(Number, CodedValuesStay) {
  for (const DType type : {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kFloat4E2M1}) {
    for (int code = 0; code < 1 << dtype_bits(type); ++code) {
      const float value = decode(type, static_cast<uint8_t>(code));
      if (!std::isfinite(value)) continue;
      for (const double factor : {1.0, 1.01, 0.99}) {
        const float rounded = round_saturating(*small_float(type), value * factor);
        EXPECT_EQ(rounded, value) << dtype_name(type) << " " << code;
        EXPECT_EQ(std::signbit(rounded), std::signbit(value));
      }
    }
  }
}

TEST(Number, RoundsHalfToEvenAndSaturates) {
  const SmallFloat& e4m3 = *small_float(DType::kFloat8E4M3);
  EXPECT_EQ(round_saturating(e4m3, 464), 448);
  EXPECT_EQ(round_saturating(e4m3, 1e3), 448);
  EXPECT_EQ(round_saturating(e4m3, -kInfinity), -448);
  EXPECT_EQ(round_saturating(e4m3, kNaN), 0);
  EXPECT_EQ(round_saturating(e4m3, 0x1p-10), 0);
  EXPECT_TRUE(std::signbit(round_saturating(e4m3, -0x1p-10)));
  EXPECT_EQ(round_saturating(e4m3, 0x1.8p-9), 0x1p-8f);
  EXPECT_EQ(round_saturating(e4m3, 17), 16);
  EXPECT_EQ(round_saturating(e4m3, 19), 20);
  const SmallFloat& e2m1 = *small_float(DType::kFloat4E2M1);
  const float halves[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float rounded[] = {0, 1, 1, 2, 2, 4, 4};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(round_saturating(e2m1, halves[i]), rounded[i]);
    EXPECT_EQ(round_saturating(e2m1, -halves[i]), -rounded[i]);
  }
  EXPECT_TRUE(std::signbit(round_saturating(e2m1, -0.25)));
}

/// Scale byte of a group whose largest value is `largest`.
int byte_of(DType type, float largest) {
  const CodedRow row = encode(type, std::vector<float>(32, largest));
  return std::isnan(row.scales[0]) ? 255 : std::ilogb(row.scales[0]) + 127;
}

TEST(MxFloor, ScaleBytes) {
  struct Row {
    float largest;
    int e4m3, e5m2, e2m1;
  };
  for (const Row& row : {Row{1, 119, 112, 125}, Row{3.890625f, 120, 113, 126}, Row{448, 127, 120, 133},
                         Row{450, 127, 120, 133}, Row{57600, 134, 127, 140}, Row{0x1.5p-17f, 102, 95, 108},
                         Row{0x1.bp-127f, 0, 0, 0}, Row{0, 0, 0, 0}, Row{kInfinity, 255, 255, 255}}) {
    EXPECT_EQ(byte_of(DType::kFloat8E4M3, row.largest), row.e4m3) << row.largest;
    EXPECT_EQ(byte_of(DType::kFloat8E5M2, row.largest), row.e5m2) << row.largest;
    EXPECT_EQ(byte_of(DType::kFloat4E2M1, row.largest), row.e2m1) << row.largest;
  }
  const float fp4[] = {1.203125f, 2.703125f, 5.5f, 6, 7};
  const int bytes[] = {125, 126, 127, 127, 127};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(byte_of(DType::kFloat4E2M1, fp4[i]), bytes[i]);
}

TEST(MxFloor, CodesOfAGroup) {
  std::vector<float> row(40, 0.0f);
  row[0] = 956;  // scale 2: 478 is past the largest code
  row[1] = -1;
  row[2] = -0.0f;
  row[32] = 0x1p-133f;  // a group of subnormals
  row[33] = -0x1p-133f;
  const CodedRow coded = encode(DType::kFloat8E4M3, row);
  EXPECT_EQ(coded.scales, (std::vector<float>{2, 0x1p-127f}));
  EXPECT_EQ(coded.codes[0], 448);
  EXPECT_EQ(coded.codes[1], -0.5f);
  EXPECT_TRUE(std::signbit(coded.codes[2]));
  EXPECT_EQ(coded.codes[32], 0);
  EXPECT_FALSE(std::signbit(coded.codes[32]));
  EXPECT_TRUE(std::signbit(coded.codes[33]));
  EXPECT_EQ(value(coded, 0), 896);
  EXPECT_EQ(value(coded, 39), 0);
}

TEST(MxFloor, SmallGroupsHaveTheSmallestScale) {
  const CodedRow coded = encode(DType::kFloat8E4M3, {0x1p-120f, 0x1p-130f});  // exponent field 7 <= 8
  EXPECT_EQ(coded.scales, (std::vector<float>{0x1p-127f}));
  EXPECT_EQ(coded.codes, (std::vector<float>{128, 0.125f}));
}

TEST(MxFloor, NaNTakesItsGroup) {
  std::vector<float> row(33, 1.0f);
  row[5] = kNaN;
  const CodedRow coded = encode(DType::kFloat4E2M1, row);
  EXPECT_TRUE(std::isnan(coded.scales[0]));
  EXPECT_EQ(coded.scales[1], 0.25f);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(coded.codes[i], 0);
  EXPECT_EQ(coded.codes[32], 4);
  EXPECT_TRUE(std::isnan(value(coded, 0)));
}

}  // namespace
}  // namespace megamoe::reference
