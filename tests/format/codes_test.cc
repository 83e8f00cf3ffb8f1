// Every code of every narrow format against the definition of the format, and every conversion against a
// search of the nearest value.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <ostream>
#include <vector>

#include "format/packed.h"
#include "format/table.h"

namespace megamoe::format {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const FormatInfo& info(DType dtype) {
  return *find_format(dtype);
}
float decode(DType dtype, uint32_t code) {
  return info(dtype).decode(code);
}

/// A number of sign, exponent and mantissa by its definition.
double number(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t exponent = code >> mantissa_bits & ((1u << exponent_bits) - 1);
  const double fraction = (code & ((1u << mantissa_bits) - 1)) / std::pow(2.0, mantissa_bits);
  const double size = exponent == 0 ? fraction * std::pow(2.0, 1 - bias)
                                    : (1 + fraction) * std::pow(2.0, static_cast<int>(exponent) - bias);
  return code >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
}

TEST(Codes, E4M3) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = decode(DType::kFloat8E4M3, code);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, number(code, 4, 3, 7)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    }
  }
  EXPECT_EQ(decode(DType::kFloat8E4M3, 0x7e), 448.0f);
}

TEST(Codes, E5M2) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = decode(DType::kFloat8E5M2, code);
    if ((code & 0x7f) > 0x7c) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else if ((code & 0x7f) == 0x7c) {
      EXPECT_EQ(value, code < 0x80 ? kInfinity : -kInfinity);
    } else {
      EXPECT_EQ(value, number(code, 5, 2, 15)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    }
  }
  EXPECT_EQ(decode(DType::kFloat8E5M2, 0x7b), 57344.0f);
}

TEST(Codes, E2M1) {
  const float sizes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 16; ++code) {
    const float value = decode(DType::kFloat4E2M1, code);
    EXPECT_EQ(std::fabs(value), sizes[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
  }
}

TEST(Codes, E8M0) {
  for (uint32_t code = 0; code < 255; ++code) {
    EXPECT_EQ(decode(DType::kFloat8E8M0, code), std::pow(2.0, static_cast<int>(code) - 127)) << code;
    EXPECT_EQ(info(DType::kFloat8E8M0).encode(decode(DType::kFloat8E8M0, code), true), code);
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(decode(DType::kFloat8E8M0, 0)), 0x00400000u);  // a subnormal, not 0
  EXPECT_TRUE(std::isnan(decode(DType::kFloat8E8M0, 255)));
}

TEST(Codes, Integers) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(decode(DType::kInt8, static_cast<uint32_t>(code)), code < 128 ? code : code - 256);
  }
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(decode(DType::kInt4, static_cast<uint32_t>(code)), code < 8 ? code : code - 16);
  }
}

/// HIFLOAT8 bit by bit: the prefix says how wide the exponent is.
double hif8_size(uint32_t payload) {
  auto power = [](int exponent) { return std::pow(2.0, exponent); };
  auto bits = [&](int high, int low) {
    return static_cast<int>(payload >> low & ((1u << (high - low + 1)) - 1));
  };
  if (bits(6, 3) == 0) return payload == 0 ? 0 : power(bits(2, 0) - 23);
  if (bits(6, 3) == 1) return 1 + bits(2, 0) / 8.0;
  if (bits(6, 4) == 1) return power(bits(3, 3) ? -1 : 1) * (1 + bits(2, 0) / 8.0);
  if (bits(6, 5) == 1) return power((2 + bits(3, 3)) * (bits(4, 4) ? -1 : 1)) * (1 + bits(2, 0) / 8.0);
  if (bits(6, 5) == 2) return power((4 + bits(3, 2)) * (bits(4, 4) ? -1 : 1)) * (1 + bits(1, 0) / 4.0);
  return power((8 + bits(3, 1)) * (bits(4, 4) ? -1 : 1)) * (1 + bits(0, 0) / 2.0);
}

TEST(Codes, HiFloat8) {
  std::map<double, uint32_t> values;
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = decode(DType::kHiFloat8, code);
    if (code == 0x80) {
      EXPECT_TRUE(std::isnan(value));
    } else if ((code & 0x7f) == 0x6f) {
      EXPECT_EQ(value, code < 0x80 ? kInfinity : -kInfinity);
    } else {
      EXPECT_EQ(value, hif8_size(code & 0x7f) * (code < 0x80 ? 1 : -1)) << code;
      EXPECT_TRUE(values.emplace(value, code).second) << code;
    }
  }
  EXPECT_EQ(values.size(), 253u);
  EXPECT_EQ(values.rbegin()->first, 32768.0);
  EXPECT_EQ(values.rbegin()->second, 0x6eu);
}

TEST(Codes, HiFloat8KnownValues) {
  const std::vector<std::pair<float, uint32_t>> cases = {
      {1.0f, 0x08},      {-1.0f, 0x88},      {1.0625f, 0x09},    {0.5f, 0x18},     {3.14159265f, 0x15},
      {-7.3f, 0xa7},     {8.0f, 0x28},       {17.0f, 0x40},      {18.0f, 0x41},    {100.0f, 0x4a},
      {300.0f, 0x60},    {384.0f, 0x61},     {1000.0f, 0x64},    {40959.9f, 0x6e}, {40960.0f, 0x6f},
      {1e-5f, 0x06},     {0x1p-23f, 0x01},   {0x1.8p-20f, 0x04}, {0.1f, 0x52},     {0.3f, 0x32},
      {kInfinity, 0x6f}, {-kInfinity, 0xef}, {kNan, 0x80},       {-0.0f, 0x00},    {-0x1p-24f, 0x00}};
  for (const auto& [value, code] : cases)
    EXPECT_EQ(info(DType::kHiFloat8).encode(value, false), code) << value;
  EXPECT_EQ(info(DType::kHiFloat8).encode(40960.0f, true), 0x6eu);
  EXPECT_EQ(info(DType::kHiFloat8).encode(-kInfinity, true), 0xeeu);
  EXPECT_EQ(info(DType::kHiFloat8).encode(kNan, true), 0x00u);
}

struct Rounding {
  DType dtype;
  uint32_t largest;  ///< code of the largest number
  uint32_t past;     ///< code of overflow without saturation; equal to `largest` where there is none
  bool away;
};
const Rounding kRoundings[] = {{DType::kFloat8E4M3, 0x7e, 0x7f, false},
                               {DType::kFloat8E5M2, 0x7b, 0x7c, false},
                               {DType::kFloat4E2M1, 0x7, 0x7, false},
                               {DType::kHiFloat8, 0x6e, 0x6f, true}};

void PrintTo(const Rounding& r, std::ostream* out) {
  *out << dtype_name(r.dtype);
}

/// Magnitudes of a format in order, with their codes.
std::map<double, uint32_t> magnitudes(const Rounding& r) {
  std::map<double, uint32_t> values;
  const uint32_t count = dtype_bits(r.dtype) == 4 ? 8 : 128;
  for (uint32_t code = 0; code < count; ++code) {
    const double value = decode(r.dtype, code);
    if (std::isfinite(value)) values[value] = code;
  }
  return values;
}

class RoundingTest : public testing::TestWithParam<Rounding> {
 protected:
  void SetUp() override { values_ = magnitudes(GetParam()); }

  /// Nearest code of a number by search. The step above the largest number is as wide as the one below it,
  /// and for HIFLOAT8 the next code would be 1.5 times the largest.
  uint32_t nearest(double size, bool saturate) const {
    const Rounding& r = GetParam();
    const double most = values_.rbegin()->first;
    const double next = r.away ? most * 1.5 : most + (most - std::next(values_.rbegin())->first);
    auto above = values_.lower_bound(size);
    if (above != values_.end() && above->first == size) return above->second;
    const uint32_t past = saturate ? r.largest : r.past;
    if (above == values_.end() && size >= next) return past;
    const auto below = std::prev(above);
    const double up = above == values_.end() ? next : above->first;
    const uint32_t up_code = above == values_.end() ? past : above->second;
    const double to_low = size - below->first, to_high = up - size;
    if (to_low != to_high) return to_low < to_high ? below->second : up_code;
    // E4M3, E5M2, E2M1: neighbours have neighbouring codes, and the code past the largest number is odd or
    // even as any other.
    if (r.away) return up_code;
    return below->second % 2 == 0 ? below->second : up_code;
  }

  void expect_nearest(float size) const {
    const FormatInfo& format = info(GetParam().dtype);
    const uint32_t sign = GetParam().dtype == DType::kFloat4E2M1 ? 8 : 0x80;
    for (bool saturate : {true, false}) {
      const uint32_t want = nearest(size, saturate);
      ASSERT_EQ(format.encode(size, saturate), want) << size;
      const bool no_sign = GetParam().away && want == 0;
      ASSERT_EQ(format.encode(-size, saturate), no_sign ? 0 : want | sign) << -size;
    }
  }
  std::map<double, uint32_t> values_;
};

TEST_P(RoundingTest, EveryCodeSurvivesTheRoundTrip) {
  const FormatInfo& format = info(GetParam().dtype);
  for (uint32_t code = 0; code < 1u << dtype_bits(format.dtype); ++code) {
    const float value = format.decode(code);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(format.decode(format.encode(value, false)))) << code;
      EXPECT_EQ(format.encode(value, true), 0u);
    } else {
      EXPECT_EQ(format.encode(value, false), code);
      if (std::isfinite(value)) {
        EXPECT_EQ(format.encode(value, true), code);
      }
    }
  }
}

TEST_P(RoundingTest, MidpointsAndTheirNeighbours) {
  for (auto low = values_.begin(), high = std::next(low); high != values_.end(); ++low, ++high) {
    const auto middle = static_cast<float>((low->first + high->first) / 2);
    for (float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfinity),
                        std::nextafter(static_cast<float>(high->first), 0.0f)}) {
      expect_nearest(value);
    }
  }
}

TEST_P(RoundingTest, FloatsOfEverySize) {
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 50021) expect_nearest(std::bit_cast<float>(bits));
  const double most = values_.rbegin()->first;
  for (double factor : {1.0, 1.03, 1.0357142857142858, 1.04, 1.125, 1.25, 1.3, 1.5, 2.0}) {
    const auto value = static_cast<float>(most * factor);
    for (float v : {std::nextafter(value, 0.0f), value, std::nextafter(value, kInfinity)}) expect_nearest(v);
  }
}

TEST_P(RoundingTest, InfinityAndNan) {
  const Rounding& r = GetParam();
  const FormatInfo& format = info(r.dtype);
  const uint32_t sign = r.dtype == DType::kFloat4E2M1 ? 8 : 0x80;
  EXPECT_EQ(format.encode(kInfinity, true), r.largest);
  EXPECT_EQ(format.encode(-kInfinity, true), r.largest | sign);
  EXPECT_EQ(format.encode(kInfinity, false), r.past);
  EXPECT_EQ(format.encode(-kInfinity, false), r.past | sign);
  EXPECT_EQ(format.encode(kNan, true), 0u);
  EXPECT_EQ(format.encode(-kNan, true), 0u);
}

INSTANTIATE_TEST_SUITE_P(Formats, RoundingTest, testing::ValuesIn(kRoundings),
                         [](const auto& param) { return std::string(dtype_name(param.param.dtype)); });

TEST(Codes, E4M3Saturates) {
  const float in[] = {448, 464, 465, 1e3f, -1e3f, kInfinity, -kInfinity, kNan, 0x1p-10f, 0x1p-9f};
  const uint32_t want[] = {0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7e, 0xfe, 0, 0, 1};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(info(DType::kFloat8E4M3).encode(in[i], true), want[i]) << in[i];
}

TEST(Codes, E2M1MidpointsGoToEven) {
  const float in[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float want[] = {0, 1, 1, 2, 2, 4, 4};
  for (int i = 0; i < 7; ++i) {
    const FormatInfo& format = info(DType::kFloat4E2M1);
    EXPECT_EQ(format.decode(format.encode(in[i], true)), want[i]);
    const float negative = format.decode(format.encode(-in[i], true));
    EXPECT_EQ(negative, -want[i]);
    EXPECT_TRUE(std::signbit(negative));
  }
}

TEST(Codes, E8M0RoundsToPowersOfTwo) {
  const FormatInfo& format = info(DType::kFloat8E8M0);
  EXPECT_EQ(format.encode(1.5f, true), 128u);  // between bytes 127 and 128: even
  EXPECT_EQ(format.encode(3.0f, true), 128u);  // between bytes 128 and 129
  EXPECT_EQ(format.encode(1.4999f, true), 127u);
  EXPECT_EQ(format.encode(0.0f, true), 0u);
  EXPECT_EQ(format.encode(0x1p-149f, true), 0u);
  EXPECT_EQ(format.encode(kInfinity, true), 254u);
  EXPECT_EQ(format.encode(std::numeric_limits<float>::max(), true), 254u);
  EXPECT_EQ(format.encode(kNan, true), 255u);
  EXPECT_EQ(format.encode(-1.0f, true), 255u);
}

TEST(Codes, HalvesSaturate) {
  EXPECT_EQ(info(DType::kFloat16).encode(1e6f, true), 0x7bffu);
  EXPECT_EQ(info(DType::kFloat16).encode(-kInfinity, true), 0xfbffu);
  EXPECT_EQ(info(DType::kFloat16).encode(kNan, true), 0u);
  EXPECT_EQ(info(DType::kFloat16).encode(1e6f, false), 0x7c00u);
  EXPECT_EQ(info(DType::kBFloat16).encode(std::numeric_limits<float>::max(), true), 0x7f7fu);
  EXPECT_EQ(info(DType::kBFloat16).encode(std::numeric_limits<float>::max(), false), 0x7f80u);
}

TEST(Codes, FiguresComeFromTheCodes) {
  const FormatFigures e5m2 = figures(info(DType::kFloat8E5M2));
  EXPECT_EQ(e5m2.largest, 57344);
  EXPECT_EQ(e5m2.emax, 15);
  EXPECT_EQ(e5m2.smallest, 0x1p-16);
  EXPECT_EQ(e5m2.infinities, "7c, fc");
  EXPECT_EQ(e5m2.nans, "7d-7f, fd-ff");
  EXPECT_EQ(e5m2.zeros, "00, 80");
  EXPECT_EQ(figures(info(DType::kFloat8E4M3)).emax, 8);
  EXPECT_EQ(figures(info(DType::kFloat4E2M1)).emax, 2);
  EXPECT_EQ(figures(info(DType::kFloat16)).nans, "7c01-7fff, fc01-ffff");
}

TEST(Packed, NibblesAndBytes) {
  uint8_t row[3] = {0xff, 0xff, 0xff};
  write_code(row, 4, 0, 1);
  write_code(row, 4, 3, 2);
  EXPECT_EQ(row[0], 0xf1);
  EXPECT_EQ(row[1], 0x2f);
  EXPECT_EQ(read_code(row, 4, 0), 1u);
  EXPECT_EQ(read_code(row, 4, 3), 2u);
  EXPECT_EQ(read_code(row, 8, 2), 0xffu);
  EXPECT_EQ(read_code(row, 16, 0), 0x2ff1u);
}

}  // namespace
}  // namespace megamoe::format
