// The arithmetic of an expert, with every rounding written out.
#include "reference/expert.h"

#include "format/bf16.h"

namespace megamoe::reference {
namespace {

void round_bf16(std::vector<float>& row) {
  for (float& v : row) v = format::bf16_to_float(format::bf16_from_float(v));
}

std::vector<float> activate_row(const ActivationRule& rule, const std::vector<float>& linear1) {
  const size_t width = rule.gated() ? linear1.size() / 2 : linear1.size();
  std::vector<float> activated(width);
  for (size_t i = 0; i < width; ++i) {
    activated[i] = rule.gated() ? activate(rule, linear1[i], linear1[width + i]) : gelu(linear1[i]);
  }
  return activated;
}

}  // namespace

ExpertRow run_expert(const Scenario& scenario, const ActivationRule& activation, const ExpertMatrix& weight1,
                     const ExpertMatrix& weight2, const CodedRow& token, std::optional<float> early_weight) {
  ExpertRow row;
  row.linear1 = linear(scenario, token, weight1, 1);
  if (scenario.rounds_between()) round_bf16(row.linear1);
  row.activated = activate_row(activation, row.linear1);
  if (early_weight) {
    for (float& a : row.activated) a = a * *early_weight;
  }
  if (scenario.rounds_between()) round_bf16(row.activated);
  row.requantised = encode(scenario.scaling, scenario.activated, row.activated);
  // What the weight was applied to early is linear in the row, so the bias has to have it too.
  row.linear2 = linear(scenario, row.requantised, weight2, early_weight.value_or(1));
  round_bf16(row.linear2);
  return row;
}

}  // namespace megamoe::reference
