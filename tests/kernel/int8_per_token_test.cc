// The int8 per-token quantiser on every level: against the rule written out in scalar code, and against
// itself.
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "format/bf16.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Quantised {
  float scale;
  std::vector<int> codes;
};

/// The rule, step by step.
Quantised by_the_rule(const std::vector<float>& x) {
  float most = 0;
  for (float v : x) {
    if (!std::isnan(v)) most = std::max(most, std::fabs(v));
  }
  Quantised result{most / 127.0f, {}};
  for (float v : x) {
    const float quotient = result.scale == 0 ? 0 : v / result.scale;
    const float rounded = std::isnan(quotient) ? 0 : std::nearbyint(quotient);
    result.codes.push_back(static_cast<int>(std::min(127.0f, std::max(-127.0f, rounded))));
  }
  return result;
}

void quantise(const RowOps& ops, const void* x, DType input, size_t n, Guarded<int8_t>& codes,
              Guarded<float>& scale) {
  ops.quantise[static_cast<int>(QuantRule::kInt8PerToken)](
      {x, input, static_cast<int64_t>(n), nullptr, 0, 0, codes.data(), scale.data()});
}

Quantised run_f32(const RowOps& ops, const std::vector<float>& x) {
  Guarded<float> in(x.size());
  std::copy(x.begin(), x.end(), in.data());
  Guarded<int8_t> codes(x.size());
  Guarded<float> scale(1);
  quantise(ops, in.data(), DType::kFloat32, x.size(), codes, scale);
  EXPECT_TRUE(codes.intact() && scale.intact());
  return {scale[0], std::vector<int>(codes.data(), codes.data() + x.size())};
}

Quantised run_bf16(const RowOps& ops, const std::vector<uint16_t>& x) {
  Guarded<uint16_t> in(x.size());
  std::copy(x.begin(), x.end(), in.data());
  Guarded<int8_t> codes(x.size());
  Guarded<float> scale(1);
  quantise(ops, in.data(), DType::kBFloat16, x.size(), codes, scale);
  EXPECT_TRUE(codes.intact() && scale.intact());
  return {scale[0], std::vector<int>(codes.data(), codes.data() + x.size())};
}

void expect_same(const Quantised& got, const Quantised& want, const char* what) {
  ASSERT_EQ(0, std::memcmp(&got.scale, &want.scale, 4)) << what << ": " << got.scale << " and " << want.scale;
  ASSERT_EQ(got.codes, want.codes) << what << " scale " << want.scale;
}

class Int8PerTokenTest : public RowOpsTest {};

TEST_P(Int8PerTokenTest, TiesGoToEven) {
  const Quantised q = run_f32(ops(), {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f});
  EXPECT_EQ(q.scale, 1.0f);
  EXPECT_EQ(q.codes, (std::vector<int>{127, 0, 2, 2, 0, -2, -2}));
}

TEST_P(Int8PerTokenTest, ZeroRows) {
  for (const std::vector<float>& x : {std::vector<float>(37, 0.0f), std::vector<float>(37, -0.0f),
                                      std::vector<float>{0, 1e-45f, 0}, std::vector<float>(5, kNan)}) {
    const Quantised q = run_f32(ops(), x);
    EXPECT_EQ(q.scale, 0.0f);
    EXPECT_EQ(q.codes, std::vector<int>(x.size(), 0));
  }
}

TEST_P(Int8PerTokenTest, NanIsCodeZeroAndInfinityFlattens) {
  expect_same(run_f32(ops(), {1, kNan, -2}), by_the_rule({1, 0, -2}), "NaN");
  const Quantised q = run_f32(ops(), {1, kInfinity, -kInfinity, kNan, -3});
  EXPECT_EQ(q.scale, kInfinity);
  EXPECT_EQ(q.codes, std::vector<int>(5, 0));
}

TEST_P(Int8PerTokenTest, EveryLengthAndPlaceOfTheMaximum) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (size_t n = 1; n <= 150; ++n) {
    std::vector<float> x(n);
    std::vector<uint16_t> narrow(n);
    for (size_t i = 0; i < n; ++i) narrow[i] = format::bf16_from_float(x[i] = normal(random));
    x[random() % n] = -9.5f;
    narrow[random() % n] = format::bf16_from_float(-9.5f);
    expect_same(run_f32(ops(), x), by_the_rule(x), "f32");
    std::vector<float> wide(n);
    for (size_t i = 0; i < n; ++i) wide[i] = format::bf16_to_float(narrow[i]);
    expect_same(run_bf16(ops(), narrow), by_the_rule(wide), "bf16");
  }
}

// All bf16 values in rows that share an exponent range, so that every code occurs, subnormal rows included.
TEST_P(Int8PerTokenTest, EveryBf16Value) {
  for (uint32_t first = 0; first < 0x10000; first += 512) {  // four binades
    std::vector<uint16_t> x(512);
    std::vector<float> wide(512);
    for (uint32_t i = 0; i < 512; ++i) {
      x[i] = static_cast<uint16_t>(first + i);
      wide[i] = format::bf16_to_float(x[i]);
    }
    expect_same(run_bf16(ops(), x), by_the_rule(wide), "bf16");
    expect_same(run_f32(ops(), wide), by_the_rule(wide), "f32");
  }
}

// Under a maximum of every significand all values that have a code other than 0.
TEST_P(Int8PerTokenTest, EveryBf16ValueUnderEveryMaximum) {
  for (uint32_t binade : {0x10u, 0x11u, 0x7fu, 0xfeu}) {
    for (uint32_t largest = binade << 7; largest < (binade + 1) << 7; ++largest) {
      std::vector<uint16_t> x;
      std::vector<float> wide;
      for (uint32_t code = largest - 0x480; code <= largest; ++code) {
        x.push_back(static_cast<uint16_t>(code | (code & 1) << 15));
        wide.push_back(format::bf16_to_float(x.back()));
      }
      expect_same(run_bf16(ops(), x), by_the_rule(wide), "bf16");
    }
  }
}

TEST_P(Int8PerTokenTest, SubnormalsAndExtremes) {
  std::mt19937 random(4);
  for (int exponent = -149; exponent <= 127; ++exponent) {
    std::vector<float> x(64);
    for (float& v : x)
      v = std::ldexp(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 500.0f, exponent);
    expect_same(run_f32(ops(), x), by_the_rule(x), "scaled");
  }
}

INSTANTIATE_ROW_OPS(Int8PerTokenTest);

}  // namespace
}  // namespace megamoe::kernel
