// Rows of the scenario table and the look-up by settings.
#include "moe/scenarios.h"

#include <string>

namespace megamoe::moe {
namespace {

constexpr Codec kCopyBf16{"bf16", std::nullopt};
constexpr Codec kInt8PerToken{"int8_per_token", quant::QuantRule::kInt8PerToken};

const Scenario kScenarios[] = {
#define MEGAMOE_SCENARIO(name, mode, out, weight, scales, token, family1, epilogue1, requantise, family2, \
                         epilogue2)                                                                       \
  {name,                                                                                                  \
   mode,                                                                                                  \
   DType::out,                                                                                            \
   DType::weight,                                                                                         \
   scales,                                                                                                \
   &token,                                                                                                \
   kernel::Family::family1,                                                                               \
   kernel::EpilogueKind::epilogue1,                                                                       \
   &requantise,                                                                                           \
   kernel::Family::family2,                                                                               \
   kernel::EpilogueKind::epilogue2},
#include "moe/scenarios.inc"
#undef MEGAMOE_SCENARIO
};

// dispatch_quant_out_dtype may be left undefined: the mode then decides alone where it can.
bool accepts(const Scenario& scenario, int mode, DType out) {
  if (scenario.dispatch_quant_mode != mode) return false;
  return out == DType::kUndefined || out == scenario.dispatch_quant_out_dtype ||
         out == scenario.token_codec->codes();
}

std::string list_modes() {
  std::string text;
  for (const Scenario& scenario : kScenarios) {
    const std::string mode = std::to_string(scenario.dispatch_quant_mode);
    text += (text.empty() ? "" : ", ") + mode + " (" + scenario.token_codec->name + ")";
  }
  return text;
}

}  // namespace

std::span<const Scenario> scenarios() {
  return kScenarios;
}

Result<const Codec*> find_token_codec(int mode, DType out) {
  std::string expected_types;
  for (const Scenario& scenario : kScenarios) {
    if (accepts(scenario, mode, out)) return scenario.token_codec;
    if (scenario.dispatch_quant_mode == mode)
      expected_types += std::string(dtype_name(scenario.token_codec->codes())) + ", ";
  }
  if (expected_types.empty()) {
    return Status(Code::kInvalidArgument,
                  "dispatch_quant_mode = " + std::to_string(mode) + ": expected one of " + list_modes());
  }
  return Status(Code::kInvalidArgument, std::string("dispatch_quant_out_dtype = ") + dtype_name(out) +
                                            ": expected " + expected_types +
                                            "or undefined with dispatch_quant_mode " + std::to_string(mode));
}

Result<const Scenario*> find_scenario(int mode, DType out, DType weight) {
  Result<const Codec*> codec = find_token_codec(mode, out);
  if (!codec) return codec.status();
  std::string expected;
  for (const Scenario& scenario : kScenarios) {
    if (!accepts(scenario, mode, out)) continue;
    if (scenario.weight == weight) return &scenario;
    expected += (expected.empty() ? "" : " or ") + std::string(dtype_name(scenario.weight));
  }
  return Status(Code::kInvalidType, std::string("weight1 has type ") + dtype_name(weight) + ": expected " +
                                        expected + " with dispatch_quant_mode " + std::to_string(mode));
}

Result<const Scenario*> scenario_from_name(std::string_view name) {
  std::string names;
  for (const Scenario& scenario : kScenarios) {
    if (name == scenario.name) return &scenario;
    names += (names.empty() ? "" : ", ") + std::string(scenario.name);
  }
  return Status(Code::kInvalidArgument, "scenario = " + std::string(name) + ": expected one of " + names);
}

}  // namespace megamoe::moe
