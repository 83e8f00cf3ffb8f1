// Kinds, names and parameters of the activations.
#pragma once

namespace megamoe::activation {

inline constexpr float kFloatMax = 3.40282347e+38f;

enum class ActivationKind : int {
#define MEGAMOE_ACTIVATION(kind, name, type, gated) kind,
#include "activation/table.inc"
#undef MEGAMOE_ACTIVATION
};

struct ActivationInfo {
  ActivationKind kind;
  const char* name;
  bool gated;  ///< Linear1 columns are gate and up; otherwise each column is an output
};

inline constexpr ActivationInfo kActivations[] = {
#define MEGAMOE_ACTIVATION(kind, name, type, gated) {ActivationKind::kind, name, gated},
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
