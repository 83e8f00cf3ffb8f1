// Formulas and parameter rules of the activations.
#include "reference/activation.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "reference/text.h"

namespace megamoe::reference {
namespace {

using Kind = ActivationRule::Kind;

// Arguments by the names of the Python interface.
constexpr const char* kClamp = "activation_clamp";
constexpr const char* kAlpha = "activation_params.alpha";
constexpr const char* kBeta = "activation_params.beta";
constexpr const char* kLinearBeta = "activation_params.linear_beta";

struct KindName {
  const char* name;
  Kind kind;
};
constexpr KindName kKinds[] = {{"swiglu", Kind::kSwiglu},
                               {"swiglustep", Kind::kSwigluStep},
                               {"swigluoai", Kind::kSwigluOai},
                               {"situglu", Kind::kSituGlu},
                               {"gelu", Kind::kGelu}};

Status bad_parameter(const char* argument, double got, const std::string& expected) {
  return Status(Code::kInvalidArgument, argument + (" = " + text(got)) + ": expected " + expected);
}

// A parameter that is given although the activation has none of this kind.
Status not_taken(const char* argument, double got, const std::string& name) {
  return bad_parameter(argument, got, "none for activation " + name);
}

// Comparisons are written so that a NaN stays a NaN.
double at_most(double value, double limit) {
  return value > limit ? limit : value;
}
double at_least(double value, double limit) {
  return value < limit ? limit : value;
}

// z * sigmoid(s), with the limit 0 where the sigmoid vanishes faster than any z grows.
double times_sigmoid(double z, double s) {
  const double e = std::exp(-s);
  return std::isinf(e) ? std::copysign(0.0, z) : z / (e + 1.0);
}

double bounded(double value, double beta) {
  return beta * std::tanh(value / beta);
}

}  // namespace

Result<ActivationRule> resolve_activation(const Activation& activation) {
  ActivationRule rule;
  bool known = false;
  std::string names;
  for (const KindName& row : kKinds) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    if (activation.name != row.name) continue;
    rule.kind = row.kind;
    known = true;
  }
  if (!known) {
    return Status(Code::kInvalidArgument,
                  "activation = \"" + activation.name + "\": expected one of " + names);
  }

  const double clamp = activation.clamp.value_or(0.0);
  if (!(clamp >= 0))
    return bad_parameter(kClamp, clamp, "a number >= 0 (0 = not clamped), the first of activation_params");
  const float limit = static_cast<float>(clamp);
  const bool clamped = clamp != 0 && limit < std::numeric_limits<float>::max();
  rule.clamp = clamped ? limit : std::numeric_limits<float>::infinity();

  const bool is_oai = rule.kind == Kind::kSwigluOai;
  const bool is_situ = rule.kind == Kind::kSituGlu;
  if (clamped && (is_situ || rule.kind == Kind::kGelu)) return not_taken(kClamp, clamp, activation.name);
  if (activation.alpha && !is_oai) return not_taken(kAlpha, *activation.alpha, activation.name);
  if (activation.beta && !is_oai && !is_situ) return not_taken(kBeta, *activation.beta, activation.name);
  if (activation.linear_beta && !is_situ)
    return not_taken(kLinearBeta, *activation.linear_beta, activation.name);

  rule.alpha = static_cast<float>(activation.alpha.value_or(1.702));
  rule.beta = static_cast<float>(activation.beta.value_or(1.0));
  rule.linear_beta = static_cast<float>(activation.linear_beta.value_or(0.0));
  if (!std::isfinite(rule.alpha)) return bad_parameter(kAlpha, *activation.alpha, "a finite number");
  if (!std::isfinite(rule.beta)) return bad_parameter(kBeta, *activation.beta, "a finite number");
  if (is_situ && !(rule.beta > 0)) return bad_parameter(kBeta, *activation.beta, "a number > 0");
  if (activation.linear_beta && !(std::isfinite(rule.linear_beta) && rule.linear_beta > 0)) {
    return bad_parameter(kLinearBeta, *activation.linear_beta, "a finite number > 0");
  }
  return rule;
}

float activate(const ActivationRule& rule, float gate, float up) {
  const double c = rule.clamp;
  const double g = at_most(gate, c);
  const double u = at_least(at_most(up, c), -c);
  double a = 0;
  switch (rule.kind) {
    case Kind::kSwiglu:
      a = times_sigmoid(g, g) * u;
      break;
    case Kind::kSwigluStep:
      a = at_most(times_sigmoid(gate, gate), c) * u;
      break;
    case Kind::kSwigluOai:
      a = (u + rule.beta) * times_sigmoid(g, double{rule.alpha} * g);
      break;
    case Kind::kSituGlu: {
      const double linear = rule.linear_beta > 0 ? bounded(up, rule.linear_beta) : double{up};
      a = times_sigmoid(bounded(gate, rule.beta), gate) * linear;
      break;
    }
    case Kind::kGelu:
      return gelu(gate);
  }
  return static_cast<float>(a);
}

float gelu(float value) {
  const double z = value;
  return static_cast<float>(times_sigmoid(z, std::sqrt(8.0 / std::numbers::pi) * (z + 0.044715 * z * z * z)));
}

}  // namespace megamoe::reference
