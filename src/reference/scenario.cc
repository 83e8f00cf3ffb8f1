// The scenario table and its look-ups.
#include "reference/scenario.h"

#include <algorithm>

namespace megamoe::reference {
namespace {

constexpr Scenario kScenarios[] = {
    {"A16W16", DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, 0, Scaling::kNone, WeightScaling::kNone},
    {"A8W8-INT", DType::kInt8, DType::kInt8, DType::kInt8, 2, Scaling::kPerRow, WeightScaling::kPerColumn},
    {"A8W4-INT", DType::kInt8, DType::kInt4, DType::kInt8, 2, Scaling::kPerRow, WeightScaling::kPerColumn},
    {"A8W8-FP", DType::kFloat8E5M2, DType::kFloat8E5M2, DType::kFloat8E5M2, 4, Scaling::kMx,
     WeightScaling::kMx},
    {"A8W8-FP", DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat8E4M3, 4, Scaling::kMx,
     WeightScaling::kMx},
    {"A16W4-FP", DType::kBFloat16, DType::kFloat4E2M1, DType::kBFloat16, 0, Scaling::kNone,
     WeightScaling::kMx},
    {"A8W4-FP", DType::kFloat8E4M3, DType::kFloat4E2M1, DType::kFloat8E4M3, 4, Scaling::kMx,
     WeightScaling::kMx},
    {"A4W4-FP", DType::kFloat4E2M1, DType::kFloat4E2M1, DType::kFloat8E4M3, 4, Scaling::kMx,
     WeightScaling::kMx},
    {"A16W4-GROUP", DType::kBFloat16, DType::kInt4, DType::kBFloat16, 0, Scaling::kNone,
     WeightScaling::kGroups},
    {"A8W4-GROUP", DType::kInt8, DType::kInt4, DType::kInt8, 2, Scaling::kPerRow, WeightScaling::kGroups},
    {"A16W8-BLOCK", DType::kBFloat16, DType::kFloat8E4M3, DType::kBFloat16, 0, Scaling::kNone,
     WeightScaling::kBlocks},
    {"A8W8-BLOCK", DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat8E4M3, 3, Scaling::kGroup128,
     WeightScaling::kBlocks},
};

std::string list(const std::vector<DType>& types) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == types.size() ? " or " : ", ") + std::string(dtype_name(types[i]));
  }
  return text;
}

bool has_form(const Scenario& row, const WeightForm& weight) {
  return row.weight == weight.codes && row.weight_scaling == weight.scaling;
}

// Modes under which tokens come in the codes of a row.
bool takes_mode(const Scenario& row, int mode) {
  return mode == row.quant_mode || (row.scaling == Scaling::kMx && mode == kCodedTokens);
}

}  // namespace

WeightForm weight_form(DType codes, int64_t scale_group) {
  if (scale_group != 0) {
    return {codes, codes == DType::kInt4 ? WeightScaling::kGroups : WeightScaling::kBlocks};
  }
  for (const Scenario& row : kScenarios) {
    if (row.weight == codes) return {codes, row.weight_scaling};
  }
  return {codes, WeightScaling::kNone};
}

std::vector<DType> weight_types(DType codes) {
  std::vector<DType> types;
  for (const Scenario& row : kScenarios) {
    if (codes != DType::kUndefined && row.weight != codes) continue;
    if (std::find(types.begin(), types.end(), row.weight) != types.end()) continue;
    types.push_back(row.weight);
    if (row.weight == DType::kInt4) types.push_back(DType::kInt32);
  }
  return types;
}

Result<const Scenario*> routed_scenario(const BufferConfig& config, const WeightForm& weight) {
  const int mode = config.dispatch_quant_mode;
  std::vector<const Scenario*> rows;
  std::vector<DType> tokens;
  std::vector<int> modes;
  for (const Scenario& row : kScenarios) {
    if (!has_form(row, weight)) continue;
    for (const int known : {kCodedTokens, row.quant_mode}) {
      if (takes_mode(row, known) && std::count(modes.begin(), modes.end(), known) == 0)
        modes.push_back(known);
    }
    if (!takes_mode(row, mode)) continue;
    rows.push_back(&row);
    tokens.push_back(row.token);
  }
  const std::string name = dtype_name(weight.codes);
  if (modes.empty()) {
    return Status(Code::kInvalidArgument,
                  "scale_group of weight1 is not 0: expected 0 with " + name + " weights");
  }
  if (rows.empty()) {
    std::string expected;
    for (const int known : modes) expected += (expected.empty() ? "" : " or ") + std::to_string(known);
    return Status(Code::kInvalidArgument, "dispatch_quant_mode = " + std::to_string(mode) + ": expected " +
                                              expected + " for " + name + " weights");
  }
  const DType out = config.dispatch_quant_out_dtype;
  // Undefined leaves no choice, or stands for tokens that come without codes.
  const auto makes_codes = [&](const Scenario* row) { return row->quant_mode == mode; };
  const auto own = std::find_if(rows.begin(), rows.end(), makes_codes);
  const bool only = rows.size() == 1 || std::count_if(rows.begin(), rows.end(), makes_codes) == 1;
  if (out == DType::kUndefined && only) return own == rows.end() ? rows.front() : *own;
  const auto found = std::find(tokens.begin(), tokens.end(), out);
  if (found != tokens.end()) return rows[found - tokens.begin()];
  return Status(Code::kInvalidType, std::string("dispatch_quant_out_dtype = ") + dtype_name(out) +
                                        ": expected " + (only ? "undefined or " : "") + list(tokens));
}

Result<const Scenario*> shared_scenario(const Scenario& routed, bool coded_x, DType quant_out_dtype,
                                        const WeightForm& weight) {
  if (coded_x && quant_out_dtype != DType::kUndefined && quant_out_dtype != routed.token) {
    return Status(Code::kInvalidType, std::string("shared_expert_quant_out_dtype = ") +
                                          dtype_name(quant_out_dtype) + ": expected undefined or " +
                                          dtype_name(routed.token) + ", the type of x");
  }
  const DType token = quant_out_dtype == DType::kUndefined ? routed.token : quant_out_dtype;
  std::vector<DType> tokens;
  for (const Scenario& row : kScenarios) {
    if (!has_form(row, weight)) continue;
    if (row.token == token) return &row;
    tokens.push_back(row.token);
  }
  return Status(Code::kInvalidType, std::string("shared_expert_quant_out_dtype = ") +
                                        dtype_name(quant_out_dtype) + ": expected " + list(tokens) +
                                        " for shared_weight1 of type " + dtype_name(weight.codes));
}

}  // namespace megamoe::reference
