// The scenario table and its look-ups.
#include "reference/scenario.h"

#include <algorithm>

namespace megamoe::reference {
namespace {

constexpr Scenario kScenarios[] = {
    {"A16W16", DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, 0},
    {"A8W8-INT", DType::kInt8, DType::kInt8, DType::kInt8, 2},
    {"A8W4-INT", DType::kInt8, DType::kInt4, DType::kInt8, 2},
    {"A8W8-FP", DType::kFloat8E5M2, DType::kFloat8E5M2, DType::kFloat8E5M2, 4},
    {"A8W8-FP", DType::kFloat8E4M3, DType::kFloat8E4M3, DType::kFloat8E4M3, 4},
    {"A8W4-FP", DType::kFloat8E4M3, DType::kFloat4E2M1, DType::kFloat8E4M3, 4},
    {"A4W4-FP", DType::kFloat4E2M1, DType::kFloat4E2M1, DType::kFloat8E4M3, 4},
};

std::string list(const std::vector<DType>& types) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == types.size() ? " or " : ", ") + std::string(dtype_name(types[i]));
  }
  return text;
}

}  // namespace

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

Result<const Scenario*> routed_scenario(const BufferConfig& config, DType weight) {
  std::vector<const Scenario*> rows;
  std::vector<DType> tokens;
  for (const Scenario& row : kScenarios) {
    if (row.weight != weight) continue;
    rows.push_back(&row);
    tokens.push_back(row.token);
  }
  const Scenario& first = *rows.front();
  const bool takes_codes = first.scaling() == Scaling::kMx;
  const int mode = config.dispatch_quant_mode;
  if (mode != first.quant_mode && !(takes_codes && mode == kCodedTokens)) {
    const std::string codes = takes_codes ? std::to_string(kCodedTokens) + " or " : "";
    return Status(Code::kInvalidArgument, "dispatch_quant_mode = " + std::to_string(mode) + ": expected " +
                                              codes + std::to_string(first.quant_mode) + " for " +
                                              dtype_name(weight) + " weights");
  }
  const DType out = config.dispatch_quant_out_dtype;
  if (out == DType::kUndefined && rows.size() == 1) return rows.front();
  const auto found = std::find(tokens.begin(), tokens.end(), out);
  if (found != tokens.end()) return rows[found - tokens.begin()];
  return Status(Code::kInvalidType, std::string("dispatch_quant_out_dtype = ") + dtype_name(out) +
                                        ": expected " + (rows.size() == 1 ? "undefined or " : "") +
                                        list(tokens));
}

Result<const Scenario*> shared_scenario(const Scenario& routed, bool coded_x, DType quant_out_dtype,
                                        DType weight) {
  if (coded_x && quant_out_dtype != DType::kUndefined && quant_out_dtype != routed.token) {
    return Status(Code::kInvalidType, std::string("shared_expert_quant_out_dtype = ") +
                                          dtype_name(quant_out_dtype) + ": expected undefined or " +
                                          dtype_name(routed.token) + ", the type of x");
  }
  const DType token = quant_out_dtype == DType::kUndefined ? routed.token : quant_out_dtype;
  std::vector<DType> tokens;
  for (const Scenario& row : kScenarios) {
    if (row.weight != weight) continue;
    if (row.token == token) return &row;
    tokens.push_back(row.token);
  }
  return Status(Code::kInvalidType, std::string("shared_expert_quant_out_dtype = ") +
                                        dtype_name(quant_out_dtype) + ": expected " + list(tokens) +
                                        " for shared_weight1 of type " + dtype_name(weight));
}

}  // namespace megamoe::reference
