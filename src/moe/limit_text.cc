// Limits as text, for errors and for the table.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "activation/params.h"
#include "megamoe/tensor.h"
#include "moe/limit_rows.h"

namespace megamoe::moe {
namespace {

constexpr ParameterInfo kParameters[] = {
#define MEGAMOE_PARAMETER(enumerator, stage, kind, name) {LimitStage::stage, ParameterKind::kind, name},
#include "moe/parameters.inc"
#undef MEGAMOE_PARAMETER
};

/// Parameters that the first version has under another name, or as a size of a tensor.
constexpr std::pair<Parameter, const char*> kFirstVersionNames[] = {
    {Parameter::kNumExperts, "moe_expert_num"},
    {Parameter::kExpertsPerRank, "weight1 (E, ...)"},
    {Parameter::kNumTopk, "topk_ids (T, K)"},
    {Parameter::kHidden, "x (T, H)"},
    {Parameter::kIntermediateHidden, "weight2 (E, H, I)"},
    {Parameter::kDispatchQuantOutDtype, "dispatch_quant_out_type"},
    {Parameter::kTokens, "x (T, H)"},
};
/// Of its arguments these have the name of the parameter.
constexpr std::string_view kFirstVersionArguments[] = {
    "x",
    "topk_ids",
    "topk_weights",
    "weight1",
    "weight2",
    "weight_scales1",
    "weight_scales2",
    "x_active_mask",
    "ep_world_size",
    "max_recv_token_num",
    "dispatch_quant_mode",
    "combine_quant_mode",
};

std::string float_text(int64_t bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", double{std::bit_cast<float>(static_cast<uint32_t>(bits))});
  return text;
}

std::string value_text(ParameterKind kind, int64_t value) {
  switch (kind) {
    case ParameterKind::kInteger:
    case ParameterKind::kTokenCount:
    case ParameterKind::kExpertCount:
      return std::to_string(value);
    case ParameterKind::kSwitch:
      return value != 0 ? "true" : "false";
    case ParameterKind::kType:
    case ParameterKind::kTensorType:
      return dtype_name(static_cast<DType>(value));
    case ParameterKind::kMaskType:
      return static_cast<DType>(value) == DType::kUInt8 ? "bool" : dtype_name(static_cast<DType>(value));
    case ParameterKind::kTensorLayout:
      return layout_name(static_cast<Layout>(value));
    case ParameterKind::kActivationName:
      return activation::kActivations[value].name;
    case ParameterKind::kClamp:
      return value == static_cast<int64_t>(ClampValue::kNone)      ? "none"
             : value == static_cast<int64_t>(ClampValue::kLargest) ? "the largest float32"
                                                                   : float_text(value);
    case ParameterKind::kPresence:
      return value == static_cast<int64_t>(Given::kNone) ? "none" : "one";
    case ParameterKind::kTensorForm:
      return value == static_cast<int64_t>(Form::kStacked) ? "stacked" : "one tensor per expert";
  }
  return {};
}

std::string set_text(ParameterKind kind, const ValueSet& set) {
  std::string text;
  for (int i = 0; i < set.count; ++i) {
    text += i == 0 ? "" : i + 1 == set.count ? " or " : ", ";
    text += value_text(kind, set.values[i]);
  }
  return text;
}

std::string bound_text(const Bound& bound, const Quantities* values) {
  if (!bound.refers) return std::to_string(bound.number);
  const ParameterInfo& info = parameter_info(bound.parameter);
  if (values == nullptr) return info.name;
  return value_text(info.kind, (*values)[bound.parameter]) + " (" + info.name + ")";
}

}  // namespace

const ParameterInfo& parameter_info(Parameter parameter) {
  return kParameters[static_cast<size_t>(parameter)];
}

std::string parameter_text(Parameter parameter) {
  const ParameterInfo& info = parameter_info(parameter);
  switch (info.kind) {
    case ParameterKind::kTensorType:
    case ParameterKind::kMaskType:
      return std::string("type of ") + info.name;
    case ParameterKind::kTensorLayout:
      return std::string("layout of ") + info.name;
    case ParameterKind::kTensorForm:
      return std::string("form of ") + info.name;
    case ParameterKind::kTokenCount:
      return std::string("tokens of ") + info.name;
    case ParameterKind::kExpertCount:
      return std::string("experts of ") + info.name;
    default:
      return info.name;
  }
}

std::string got_text(Parameter parameter, int64_t value) {
  const ParameterInfo& info = parameter_info(parameter);
  const std::string name = info.name;
  const std::string got = value_text(info.kind, value);
  switch (info.kind) {
    case ParameterKind::kTensorType:
    case ParameterKind::kMaskType:
      return name + " has type " + got;
    case ParameterKind::kTensorLayout:
      return name + " has layout " + got;
    case ParameterKind::kTensorForm:
      return name + " is " + got;
    case ParameterKind::kTokenCount:
      return name + " has " + got + " tokens";
    case ParameterKind::kExpertCount:
      return name + " has " + got + " experts";
    case ParameterKind::kPresence:
      return name + (value == static_cast<int64_t>(Given::kNone) ? " is missing" : " is given");
    default:
      return name + " = " + got;
  }
}

std::string allowed_text(const Limit& limit, const Quantities* values) {
  const Allowed& allowed = limit.allowed;
  switch (allowed.shape) {
    case Allowed::Shape::kSet:
      return set_text(parameter_info(limit.parameter).kind, allowed.set);
    case Allowed::Shape::kDivisor:
      return "a divisor of " + bound_text(allowed.low, values);
    case Allowed::Shape::kSame:
      return values == nullptr
                 ? "as " + parameter_text(allowed.low.parameter)
                 : value_text(parameter_info(limit.parameter).kind, allowed.low.value(*values)) + " as " +
                       parameter_info(allowed.low.parameter).name;
    case Allowed::Shape::kRange:
      break;
  }
  const bool any = !allowed.multiple.refers && allowed.multiple.number == 1;
  return (any ? "a value" : "a multiple of " + bound_text(allowed.multiple, values)) + " in [" +
         bound_text(allowed.low, values) + ", " + bound_text(allowed.high, values) + "]";
}

std::string first_version_text(Parameter parameter) {
  for (const auto& [named, text] : kFirstVersionNames) {
    if (named == parameter) return text;
  }
  const auto* end = std::end(kFirstVersionArguments);
  const bool same = std::find(std::begin(kFirstVersionArguments), end, parameter_info(parameter).name) != end;
  return same ? parameter_text(parameter) : "-";
}

std::string when_text(const Limit& limit) {
  std::string text;
  for (const Condition& condition : limit.when) {
    if (!condition.used) continue;
    const ParameterKind kind = parameter_info(condition.parameter).kind;
    text += text.empty() ? "" : " and ";
    text += parameter_text(condition.parameter);
    if (kind != ParameterKind::kSwitch) text.append(" ").append(set_text(kind, condition.values));
  }
  return text;
}

}  // namespace megamoe::moe
