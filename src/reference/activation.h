// The activations between the two linear layers, evaluated in double and rounded once to float.
#pragma once

#include <string_view>

#include "megamoe/mega_moe.h"
#include "megamoe/status.h"

namespace megamoe::reference {

/// An activation with its parameters checked and its defaults filled in.
struct ActivationRule {
  enum class Kind { kSwiglu, kSwigluStep, kSwigluOai, kSituGlu, kGelu };
  Kind kind = Kind::kSwiglu;
  float clamp = 0;        ///< infinity = not clamped
  float alpha = 1.702f;   ///< swigluoai
  float beta = 1;         ///< swigluoai, situglu
  float linear_beta = 0;  ///< situglu; 0 = the linear branch is not bounded

  /// Linear1 holds gate and up columns; without a gate the activation is element-wise over all of them.
  bool gated() const { return kind != Kind::kGelu; }
};

Result<ActivationRule> resolve_activation(const Activation& activation);

/// Value of a gated activation.
float activate(const ActivationRule& rule, float gate, float up);
/// Value of the element-wise activation.
float gelu(float z);

}  // namespace megamoe::reference
