// The table of quantisation rules.
#include "quant/rules.h"

namespace megamoe::quant {
namespace {

constexpr auto kNone = RuleInfo::kNone;
constexpr auto kSmooth = RuleInfo::kSmooth;
constexpr auto kScale = RuleInfo::kScale;
constexpr auto kOffset = RuleInfo::kOffset;
constexpr auto kHalves = RuleInfo::kHalves;
constexpr auto kFloat32OrBf16 = RuleInfo::kFloat32OrBf16;
constexpr auto kAnyFloat = RuleInfo::kAnyFloat;

constexpr RuleInfo kRules[] = {
#define MEGAMOE_QUANT_RULE(enumerator, name, codes, scales, group, multiple, inputs, arguments, type) \
  {QuantRule::enumerator, name, DType::codes, DType::scales, group, multiple, inputs, arguments},
#include "quant/rules.inc"
#undef MEGAMOE_QUANT_RULE
};

}  // namespace

std::span<const RuleInfo> rules() {
  return kRules;
}

const RuleInfo& rule_info(QuantRule rule) {
  return kRules[static_cast<int>(rule)];
}

const RuleInfo* find_rule(std::string_view name) {
  for (const RuleInfo& info : kRules) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

std::string rule_names() {
  std::string text;
  for (const RuleInfo& info : kRules) text += (text.empty() ? "" : ", ") + std::string(info.name);
  return text;
}

}  // namespace megamoe::quant
