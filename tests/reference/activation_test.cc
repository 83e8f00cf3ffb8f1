// Activations: formulas, limits, clamp, parameter rules.
#include "reference/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

namespace megamoe::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double sigmoid(double z) {
  return 1 / (1 + std::exp(-z));
}

Activation named(const std::string& name) {
  Activation a;
  a.name = name;
  return a;
}

ActivationRule rule(const Activation& activation) {
  Result<ActivationRule> result = resolve_activation(activation);
  EXPECT_TRUE(result) << result.status().message();
  return result ? *result : ActivationRule{};
}

std::string error(const Activation& activation) {
  return resolve_activation(activation).status().message();
}

TEST(Activation, Swiglu) {
  for (double g : {-18.5, -3.0, -0.5, 0.0, 0.7, 4.0}) {
    const float up = 1.5f;
    EXPECT_FLOAT_EQ(activate(rule(named("swiglu")), static_cast<float>(g), up),
                    static_cast<float>(g * sigmoid(g) * up));
  }
  EXPECT_NEAR(activate(rule(named("swiglu")), -18.5f, 1), -1.709e-7, 1e-10);
}

TEST(Activation, ExtremeGates) {
  for (const std::string name : {"swiglu", "swiglustep", "swigluoai", "situglu"}) {
    const ActivationRule r = rule(named(name));
    const float up = name == "swigluoai" ? 0.0f : 1.0f;  // so that the other factor is 1
    for (float gate : {-kInfinity, -1e4f, -100.0f, -88.8f}) {
      EXPECT_LT(std::fabs(activate(r, gate, up)), 1e-30f) << name << " " << gate;
    }
    for (float gate : {-18.5f, -0.0f, 0.0f, 89.0f, kInfinity}) {
      EXPECT_FALSE(std::isnan(activate(r, gate, up))) << name << " " << gate;
    }
    EXPECT_TRUE(std::isnan(activate(r, kNaN, up))) << name;
    EXPECT_TRUE(std::isnan(activate(r, 1, kNaN))) << name;
  }
  EXPECT_EQ(activate(rule(named("swiglu")), kInfinity, 1), kInfinity);
  EXPECT_EQ(gelu(-kInfinity), 0);
  EXPECT_EQ(gelu(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(gelu(kNaN)));
}

TEST(Activation, ClampZeroAndNoneAreNotClamped) {
  Activation a = named("swiglu");
  EXPECT_EQ(activate(rule(a), 100, -100), -10000);
  a.clamp = 0;
  EXPECT_EQ(activate(rule(a), 100, -100), -10000);
  a.clamp = std::numeric_limits<double>::infinity();
  EXPECT_EQ(activate(rule(a), 100, -100), -10000);
  a.clamp = std::numeric_limits<float>::max();
  EXPECT_EQ(activate(rule(a), 100, -100), -10000);
}

TEST(Activation, ClampBoundsGateAboveAndUpOnBothSides) {
  Activation a = named("swiglu");
  a.clamp = 7;
  const ActivationRule r = rule(a);
  EXPECT_FLOAT_EQ(activate(r, 100, -100), static_cast<float>(7 * sigmoid(7) * -7));
  EXPECT_FLOAT_EQ(activate(r, 100, 100), static_cast<float>(7 * sigmoid(7) * 7));
  EXPECT_FLOAT_EQ(activate(r, -10, 1), static_cast<float>(-10 * sigmoid(-10)));
  EXPECT_TRUE(std::isnan(activate(r, kNaN, 1)));
  EXPECT_TRUE(std::isnan(activate(r, 1, kNaN)));
}

TEST(Activation, ClampErrors) {
  for (const std::string name : {"swiglu", "swiglustep", "swigluoai", "situglu", "gelu"}) {
    Activation a = named(name);
    a.clamp = -1;
    EXPECT_EQ(error(a),
              "activation_clamp = -1: expected a number >= 0 (0 = not clamped), the first of "
              "activation_params");
    a.clamp = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(error(a),
              "activation_clamp = nan: expected a number >= 0 (0 = not clamped), the first of "
              "activation_params");
  }
}

TEST(Activation, SwigluStepClampsAfterSilu) {
  Activation a = named("swiglustep");
  a.clamp = 2;
  const ActivationRule r = rule(a);
  EXPECT_EQ(activate(r, 100, 5), 4);
  EXPECT_FLOAT_EQ(activate(r, 2.1f, -5), static_cast<float>(2.1f * sigmoid(2.1f) * -2));  // silu(2.1) < 2
}

TEST(Activation, SwigluOai) {
  EXPECT_FLOAT_EQ(activate(rule(named("swigluoai")), 1.25f, 0.5f),
                  static_cast<float>(1.5 * 1.25 * sigmoid(1.702f * 1.25)));
  Activation a = named("swigluoai");
  a.clamp = 1.2;
  a.alpha = 1.5;
  a.beta = 0.5;
  const double c = 1.2f;
  EXPECT_FLOAT_EQ(activate(rule(a), 9, -9), static_cast<float>((0.5 - c) * c * sigmoid(1.5 * c)));
}

TEST(Activation, SituGlu) {
  Activation a = named("situglu");
  EXPECT_FLOAT_EQ(activate(rule(a), 0.8f, 3), static_cast<float>(std::tanh(0.8) * sigmoid(0.8) * 3));
  a.beta = 1.5;
  EXPECT_FLOAT_EQ(activate(rule(a), 0.8f, 3),
                  static_cast<float>(1.5 * std::tanh(0.8 / 1.5) * sigmoid(0.8) * 3));
  a.linear_beta = 2;
  EXPECT_FLOAT_EQ(activate(rule(a), 0.8f, 3),
                  static_cast<float>(1.5 * std::tanh(0.8 / 1.5) * sigmoid(0.8) * 2 * std::tanh(1.5)));
}

TEST(Activation, Gelu) {
  for (double z : {-2.0, -0.3, 0.0, 0.9, 3.0}) {
    const double s = std::sqrt(8 / std::numbers::pi) * (z + 0.044715 * z * z * z);
    EXPECT_FLOAT_EQ(gelu(static_cast<float>(z)), static_cast<float>(z * sigmoid(s)));
    // The tanh form is the same function.
    EXPECT_NEAR(gelu(static_cast<float>(z)), 0.5 * z * (1 + std::tanh(s / 2)), 1e-6);
  }
  EXPECT_FALSE(rule(named("gelu")).gated());
  EXPECT_TRUE(rule(named("swiglu")).gated());
}

TEST(Activation, ParameterErrors) {
  EXPECT_EQ(error(named("relu")),
            "activation = \"relu\": expected one of swiglu, swiglustep, swigluoai, situglu, gelu");
  Activation a = named("swiglu");
  a.alpha = 1;
  EXPECT_EQ(error(a), "activation_params.alpha = 1: expected none for activation swiglu");
  a = named("swiglustep");
  a.beta = 1;
  EXPECT_EQ(error(a), "activation_params.beta = 1: expected none for activation swiglustep");
  a = named("swigluoai");
  a.linear_beta = 1;
  EXPECT_EQ(error(a), "activation_params.linear_beta = 1: expected none for activation swigluoai");
  a = named("swigluoai");
  a.alpha = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error(a), "activation_params.alpha = inf: expected a finite number");
  a = named("situglu");
  a.beta = 0;
  EXPECT_EQ(error(a), "activation_params.beta = 0: expected a number > 0");
  a.beta = -2;
  EXPECT_EQ(error(a), "activation_params.beta = -2: expected a number > 0");
  a.beta = 1;
  a.linear_beta = 0;
  EXPECT_EQ(error(a), "activation_params.linear_beta = 0: expected a finite number > 0");
  a = named("situglu");
  a.clamp = 3;
  EXPECT_EQ(error(a), "activation_clamp = 3: expected none for activation situglu");
  a = named("gelu");
  a.clamp = std::numeric_limits<float>::max();  // the placeholder of the operator documents
  EXPECT_EQ(error(a), "");
  a.clamp = 3;
  EXPECT_EQ(error(a), "activation_clamp = 3: expected none for activation gelu");
}

}  // namespace
}  // namespace megamoe::reference
