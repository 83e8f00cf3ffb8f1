// Rows of the scenario table and the look-up by settings.
#include "moe/scenarios.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "format/float8_e8m0.h"
#include "pack/packed_weights.h"

namespace megamoe::moe {
namespace {

constexpr Codec kCopyBf16{"bf16", std::nullopt};
constexpr Codec kInt8PerToken{"int8_per_token", quant::QuantRule::kInt8PerToken};
constexpr Codec kMxE5M2{"mx_floor_e5m2", quant::QuantRule::kMxFloorE5M2};
constexpr Codec kMxE4M3{"mx_floor_e4m3", quant::QuantRule::kMxFloorE4M3};
constexpr Codec kMxE2M1{"mx_floor_e2m1", quant::QuantRule::kMxFloorE2M1};
constexpr Codec kFp8Block128E4M3{"fp8_block128_e4m3", quant::QuantRule::kFp8Block128E4M3};

constexpr Scenario kScenarios[] = {
#define MEGAMOE_SCENARIO(name, mode, out, default_out, weight, scales, token, family1, epilogue1, \
                         requantise, family2, epilogue2)                                          \
  {name,                                                                                          \
   mode,                                                                                          \
   DType::out,                                                                                    \
   default_out,                                                                                   \
   DType::weight,                                                                                 \
   pack::ScaleKind::scales,                                                                       \
   &token,                                                                                        \
   kernel::Family::family1,                                                                       \
   kernel::EpilogueKind::epilogue1,                                                               \
   &requantise,                                                                                   \
   kernel::Family::family2,                                                                       \
   kernel::EpilogueKind::epilogue2},
#include "moe/scenarios.inc"
#undef MEGAMOE_SCENARIO
};

constexpr struct {
  int mode;
  const Codec* codec;
} kCombineModes[] = {{0, nullptr}, {3, &kMxE5M2}, {4, &kMxE4M3}};

// Mode 0 is also the pass-through of codes that another mode makes.
constexpr int kPassThrough = 0;
bool passes_through(const Scenario& scenario, int mode) {
  return mode == kPassThrough && scenario.token_codec->is_mx();
}

bool accepts(const Scenario& scenario, int mode, DType out) {
  if (out == DType::kUndefined) return scenario.default_out && scenario.dispatch_quant_mode == mode;
  return out == scenario.dispatch_quant_out_dtype &&
         (scenario.dispatch_quant_mode == mode || passes_through(scenario, mode));
}

// Every name of a list once, in order.
void append_name(std::string& list, const std::string& name) {
  if ((", " + list + ",").find(", " + name + ",") == std::string::npos)
    list += (list.empty() ? "" : ", ") + name;
}

}  // namespace

std::span<const Scenario> scenarios() {
  return kScenarios;
}

Result<const Codec*> find_token_codec(int mode, DType out) {
  std::string modes;
  std::string types;
  for (const Scenario& scenario : kScenarios) {
    if (accepts(scenario, mode, out)) return scenario.token_codec;
    append_name(modes, std::to_string(scenario.dispatch_quant_mode));
    if (scenario.dispatch_quant_mode != mode && !passes_through(scenario, mode)) continue;
    if (scenario.default_out && scenario.dispatch_quant_mode == mode) append_name(types, "undefined");
    append_name(types, dtype_name(scenario.dispatch_quant_out_dtype));
  }
  if (types.empty()) {
    return Status(Code::kInvalidArgument,
                  "dispatch_quant_mode = " + std::to_string(mode) + ": expected one of " + modes);
  }
  return Status(Code::kInvalidArgument, std::string("dispatch_quant_out_dtype = ") + dtype_name(out) +
                                            ": expected one of " + types + " with dispatch_quant_mode " +
                                            std::to_string(mode));
}

Result<const Scenario*> find_shared_scenario(DType codes, DType weight, pack::ScaleKind scales) {
  std::string types;
  std::string weights;
  for (const Scenario& scenario : kScenarios) {
    append_name(types, dtype_name(scenario.token_codec->codes()));
    if (scenario.token_codec->codes() != codes) continue;
    if (scenario.weight == weight && scenario.weight_scales == scales) return &scenario;
    append_name(weights, pack::weight_form_name(scenario.weight, scenario.weight_scales));
  }
  if (weights.empty()) {
    return Status(Code::kInvalidArgument, std::string("shared_expert_quant_out_dtype = ") +
                                              dtype_name(codes) + ": expected one of " + types);
  }
  return Status(Code::kInvalidType, "shared_weight1 has type " + pack::weight_form_name(weight, scales) +
                                        ": expected one of " + weights + " with token codes of type " +
                                        dtype_name(codes));
}

bool passes_codes_through(int mode, DType out) {
  for (const Scenario& scenario : kScenarios) {
    if (accepts(scenario, mode, out)) return passes_through(scenario, mode);
  }
  return false;
}

Result<const Codec*> find_combine_codec(int mode) {
  std::string modes;
  for (const auto& row : kCombineModes) {
    if (row.mode == mode) return row.codec;
    append_name(modes, std::to_string(row.mode));
  }
  return Status(Code::kInvalidArgument,
                "combine_quant_mode = " + std::to_string(mode) + ": expected one of " + modes);
}

void Codec::decode(const kernel::RowOps& ops, kernel::Family family, const void* codes, const void* scales,
                   int64_t n, float* values, void* out, float* factors) const {
  const quant::RuleInfo& info = quant::rule_info(*rule);
  const auto dequantise = [&](const void* with) {
    ops.dequantise[static_cast<int>(*rule)]({codes, with, n, 0, 0, values});
  };
  const int64_t groups = info.groups(n);
  if (family == kernel::Family::kS8) {
    ops.doubled_e2m1(static_cast<const uint8_t*>(codes), n, static_cast<int8_t*>(out));
    const auto* const exponents = static_cast<const uint8_t*>(scales);
    for (int64_t g = 0; g < groups; ++g) factors[g] = 0.5f * format::e8m0_to_float(exponents[g]);
    return;
  }
  if (is_mx() && factors == nullptr) {
    dequantise(scales);
  } else if (is_mx()) {
    constexpr int kOne = 127;
    std::memset(factors, kOne, static_cast<size_t>(info.scale_bytes(n)));
    dequantise(factors);
    for (int64_t g = 0; g < groups; ++g)
      factors[g] = format::e8m0_to_float(static_cast<const uint8_t*>(scales)[g]);
  } else {
    std::fill_n(factors, info.scale_columns(n), 1.0f);
    dequantise(factors);
    std::memcpy(factors, scales, static_cast<size_t>(groups) * sizeof(float));
  }
  ops.cut_to_bf16(values, n, static_cast<uint16_t*>(out));
}

Result<const Scenario*> find_scenario(int mode, DType out, DType weight, pack::ScaleKind scales) {
  Result<const Codec*> codec = find_token_codec(mode, out);
  if (!codec) return codec.status();
  std::string expected;
  for (const Scenario& scenario : kScenarios) {
    if (!accepts(scenario, mode, out)) continue;
    if (scenario.weight == weight && scenario.weight_scales == scales) return &scenario;
    expected +=
        (expected.empty() ? "" : " or ") + pack::weight_form_name(scenario.weight, scenario.weight_scales);
  }
  return Status(Code::kInvalidType, "weight1 has type " + pack::weight_form_name(weight, scales) +
                                        ": expected " + expected + " with dispatch_quant_mode " +
                                        std::to_string(mode));
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

namespace megamoe {

std::vector<std::string> PackedWeights::scenarios() const {
  const pack::Geometry& g = impl().geometry();
  std::vector<std::string> names;
  for (const moe::Scenario& scenario : moe::scenarios()) {
    if (scenario.weight != g.dtype || scenario.weight_scales != g.scales) continue;
    if (names.empty() || names.back() != scenario.name) names.emplace_back(scenario.name);
  }
  return names;
}

}  // namespace megamoe
