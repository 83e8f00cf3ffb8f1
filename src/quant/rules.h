// The quantisation rules by name: types, groups and sizes of a row of codes and of its scales.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megamoe/tensor.h"

namespace megamoe::quant {

enum class QuantRule : int {
#define MEGAMOE_QUANT_RULE(enumerator, name, codes, scales, group, multiple, inputs, arguments, type) \
  enumerator,
#include "quant/rules.inc"
#undef MEGAMOE_QUANT_RULE
};

inline constexpr int kQuantRuleCount = 0
#define MEGAMOE_QUANT_RULE(enumerator, name, codes, scales, group, multiple, inputs, arguments, type) +1
#include "quant/rules.inc"
#undef MEGAMOE_QUANT_RULE
    ;

struct RuleInfo {
  /// Arguments a rule takes besides the row; smooth scales are always optional, the others required.
  enum Argument : unsigned { kNone = 0, kSmooth = 1, kScale = 2, kOffset = 4 };
  /// Element types a rule takes, one bit per DType.
  enum Inputs : unsigned {
    kHalves = 1u << static_cast<int>(DType::kBFloat16) | 1u << static_cast<int>(DType::kFloat16),
    kFloat32OrBf16 = 1u << static_cast<int>(DType::kBFloat16) | 1u << static_cast<int>(DType::kFloat32),
    kAnyFloat = kHalves | kFloat32OrBf16,
  };

  QuantRule id;
  const char* name;
  DType codes;
  DType scales;   ///< kUndefined where the rule writes none
  int64_t group;  ///< columns that share a scale; 0 = the whole row
  int64_t scale_multiple;
  unsigned inputs;
  unsigned arguments;

  bool accepts(DType input) const {
    return input != DType::kUndefined && (inputs >> static_cast<int>(input) & 1u);
  }
  bool takes(Argument argument) const { return (arguments & argument) != 0; }
  bool even_columns() const { return dtype_bits(codes) == 4; }
  bool has_scales() const { return scales != DType::kUndefined; }
  /// Scales that mean something: one per group of h columns.
  int64_t groups(int64_t h) const { return !has_scales() ? 0 : group == 0 ? 1 : (h + group - 1) / group; }
  /// Scales of a row with the padding.
  int64_t scale_columns(int64_t h) const {
    return (groups(h) + scale_multiple - 1) / scale_multiple * scale_multiple;
  }
  int64_t scale_bytes(int64_t h) const { return scale_columns(h) * dtype_bits(scales) / 8; }
  int64_t code_bytes(int64_t h) const { return (h * dtype_bits(codes) + 7) / 8; }
};

/// Every rule, in the order of QuantRule.
std::span<const RuleInfo> rules();
const RuleInfo& rule_info(QuantRule rule);
/// The rule of a name, or null.
const RuleInfo* find_rule(std::string_view name);
/// "int8_static, int8_per_token, ..." for messages.
std::string rule_names();

}  // namespace megamoe::quant
