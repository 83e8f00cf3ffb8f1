// Activations on every level against double precision, and at the values where SIMD forms go wrong.
#include <cmath>
#include <limits>
#include <random>

#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The formulas, in double.
double exact(ActivationKind kind, const ActivationParams& p, double g, double u) {
  const double c = p.clamp;
  const double up = std::min(std::max(u, -c), c);
  switch (kind) {
    case ActivationKind::kSwiglu:
      return std::min(g, c) * sigmoid(std::min(g, c)) * up;
    case ActivationKind::kSwigluStep:
      return std::min(g * sigmoid(g), c) * up;
    case ActivationKind::kSwigluOai:
      return (up + p.beta) * std::min(g, c) * sigmoid(p.alpha * std::min(g, c));
    case ActivationKind::kSituGlu: {
      const double linear = p.linear_beta > 0 ? p.linear_beta * std::tanh(u / p.linear_beta) : u;
      return p.beta * std::tanh(g / p.beta) * sigmoid(g) * linear;
    }
    case ActivationKind::kGelu:
      return g * sigmoid(std::sqrt(8 / M_PI) * (g + 0.044715 * g * g * g));
  }
  return 0;
}

class ActivationTest : public RowOpsTest {
 protected:
  /// activation(gate, up) as float: int32 sums of 1 carry the values as column scales.
  float apply(ActivationKind kind, const ActivationParams& params, float gate, float up) {
    Guarded<int32_t> c(kPanelColumns);
    Guarded<float> scales(kPanelColumns);
    for (int i = 0; i < kPanelColumns; ++i) {
      c[i] = 1;
      scales[i] = i < kGatedColumns ? gate : up;
    }
    const bool gated = activation::kActivations[static_cast<int>(kind)].gated;
    const float row_scale = 1;
    Guarded<float> out(kPanelColumns);
    ops().linear1[1][static_cast<int>(kind)]({c.data(), 1, gated ? kGatedColumns : kPanelColumns,
                                              scales.data(), nullptr, nullptr, &row_scale, nullptr, &params,
                                              out.data(), 0});
    for (int i = 1; i < kGatedColumns; ++i) {
      EXPECT_TRUE(out[i] == out[0] || (std::isnan(out[i]) && std::isnan(out[0]))) << "lane " << i;
    }
    return out[0];
  }
};

const ActivationParams kParams[] = {
    {},
    {.clamp = 7.0f},
    {.clamp = 0.5f, .alpha = 0.7f, .beta = 0.25f, .linear_beta = 0.5f},
    {.clamp = 7.0f, .alpha = 1.702f, .beta = 3.0f, .linear_beta = 2.0f},
};

TEST_P(ActivationTest, WithinTwoToMinusTwenty) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> wide(-20, 20), narrow(-1, 1);
  for (const activation::ActivationInfo& info : activation::kActivations) {
    for (const ActivationParams& params : kParams) {
      for (int i = 0; i < 4000; ++i) {
        auto& from = i % 2 == 0 ? wide : narrow;
        const float g = from(random), u = from(random);
        const double want = exact(info.kind, params, g, u);
        // u + beta cancels near u = -beta; the bound is relative to what enters the sum.
        double scale = std::fabs(want);
        if (info.kind == ActivationKind::kSwigluOai)
          scale = std::max(scale, std::fabs(exact(info.kind, params, g, 0)));
        // Up to four roundings of the exponent's argument weigh as much as the argument is large.
        double exponent = std::fabs(g);
        if (info.kind == ActivationKind::kGelu) exponent = std::fabs(1.6 * (g + 0.045 * g * g * g));
        const double bound = scale * (0x1p-20 + exponent * 0x1p-22) + 1e-37;
        ASSERT_NEAR(apply(info.kind, params, g, u), want, bound) << info.name << " g " << g << " u " << u;
      }
    }
  }
}

TEST_P(ActivationTest, SiluAtTheEdges) {
  const ActivationParams none;
  const auto silu = [&](float g) { return apply(ActivationKind::kSwiglu, none, g, 1); };
  EXPECT_EQ(silu(-kInfinity), 0.0f);
  EXPECT_EQ(silu(-kMax), 0.0f);
  EXPECT_EQ(silu(-1e4f), 0.0f);
  EXPECT_LT(std::fabs(silu(-100)), 1e-30f);
  EXPECT_LT(std::fabs(silu(-88.8f)), 1e-30f);
  EXPECT_NEAR(silu(-18.5f), -1.709e-7f, 1e-9f);
  EXPECT_EQ(silu(-0.0f), 0.0f);
  EXPECT_EQ(silu(0), 0.0f);
  EXPECT_EQ(silu(89), 89.0f);
  EXPECT_GE(silu(kInfinity), kMax);
  EXPECT_TRUE(std::isnan(silu(kNan)));
}

TEST_P(ActivationTest, NanOnlyFromNan) {
  const float values[] = {-kInfinity, -kMax,  -1e30f, -1e4f, -200, -100, -88.8f, -88,   -1,   -1e-40f,  -0.0f,
                          0,          1e-40f, 0.6f,   1,     88,   89,   1e4f,   1e30f, kMax, kInfinity};
  for (const activation::ActivationInfo& info : activation::kActivations) {
    for (const ActivationParams& params : kParams) {
      for (float g : values) {
        for (float u : values) {
          ASSERT_FALSE(std::isnan(apply(info.kind, params, g, u))) << info.name << " g " << g << " u " << u;
        }
        ASSERT_TRUE(std::isnan(apply(info.kind, params, kNan, g))) << info.name;
        ASSERT_EQ(info.gated, std::isnan(apply(info.kind, params, g, kNan))) << info.name << " g " << g;
      }
    }
  }
}

TEST_P(ActivationTest, SituGluOfTheSmallestBetaIsNoNan) {
  // 1 / beta is no float below 2^-128.
  for (const float small : {std::numeric_limits<float>::denorm_min(), 1e-40f, 2e-39f}) {
    for (const float g : {-kInfinity, -1.0f, -0.0f, 0.0f, 1e-40f, 1.0f, kInfinity}) {
      const ActivationParams gate{.beta = small}, linear{.beta = 1, .linear_beta = small};
      EXPECT_NEAR(apply(ActivationKind::kSituGlu, gate, g, 3), 0, 1e-38) << small << " g " << g;
      EXPECT_NEAR(apply(ActivationKind::kSituGlu, linear, 3, g), 0, 1e-38) << small << " u " << g;
    }
  }
}

TEST_P(ActivationTest, ClampLimitsGateAboveAndUpOnBothSides) {
  const ActivationParams seven{.clamp = 7.0f};
  const ActivationParams none;
  for (float up : {-100.0f, 100.0f}) {
    const float sign = up < 0 ? -1.0f : 1.0f;
    EXPECT_NEAR(apply(ActivationKind::kSwiglu, none, 100, up), 100 * up, 1e-2);
    EXPECT_NEAR(apply(ActivationKind::kSwiglu, seven, 100, up), sign * 7 * 7 * sigmoid(7), 1e-4);
    EXPECT_NEAR(apply(ActivationKind::kSwigluStep, seven, 100, up), sign * 49, 1e-4);
  }
  EXPECT_NEAR(apply(ActivationKind::kSwiglu, seven, -10, 1), -10 * sigmoid(-10), 1e-8);
}

INSTANTIATE_ROW_OPS(ActivationTest);

}  // namespace
}  // namespace megamoe::kernel
