// Kinds, names and parameters of the activations.
#pragma once

namespace megamoe::activation {

inline constexpr float kFloatMax = 3.40282347e+38f;

enum class ActivationKind : int {
#define MEGAMOE_ACTIVATION(kind, name, type, gated, parameters) kind,
#include "activation/table.inc"
#undef MEGAMOE_ACTIVATION
};

/// Fields of ActivationParams that an activation reads.
enum ActivationParameter : unsigned {
  kTakesNothing = 0,
  kTakesClamp = 1,
  kTakesAlpha = 2,
  kTakesBeta = 4,
  kTakesLinearBeta = 8
};

struct ActivationInfo {
  ActivationKind kind;
  const char* name;
  bool gated;  ///< Linear1 columns are gate and up; otherwise each column is an output
  unsigned parameters;

  bool takes(ActivationParameter parameter) const { return (parameters & parameter) != 0; }
};

inline constexpr ActivationInfo kActivations[] = {
#define MEGAMOE_ACTIVATION(kind, name, type, gated, parameters) \
  {ActivationKind::kind, name, gated, parameters},
#include "activation/table.inc"
#undef MEGAMOE_ACTIVATION
};
inline constexpr int kActivationCount = static_cast<int>(sizeof(kActivations) / sizeof(kActivations[0]));

struct ActivationParams {
  float clamp = kFloatMax;  ///< FLT_MAX = not clamped
  float alpha = 1.702f;
  float beta = 1.0f;
  float linear_beta = 0.0f;  ///< 0 = the linear branch of situglu is not bounded
};

}  // namespace megamoe::activation
