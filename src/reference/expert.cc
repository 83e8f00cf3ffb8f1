// The arithmetic of the two scenarios, with every rounding written out.
#include "reference/expert.h"

#include "format/bf16.h"
#include "reference/int8_per_token.h"

namespace megamoe::reference {
namespace {

float fl32(double value) {
  return static_cast<float>(value);
}
float round_bf16(float value) {
  return format::bf16_to_float(format::bf16_from_float(value));
}

// Codes of a row as numbers, and its scale.
float quantise(const std::vector<float>& row, std::vector<float>& codes) {
  std::vector<int8_t> q(row.size());
  const float scale = quantise_int8_row(row.data(), static_cast<int64_t>(row.size()), q.data());
  codes.assign(q.begin(), q.end());
  return scale;
}

std::vector<float> activate_row(const Problem& problem, const std::vector<float>& linear1) {
  std::vector<float> activated(static_cast<size_t>(problem.activated_width));
  for (int64_t i = 0; i < problem.activated_width; ++i) {
    activated[i] = problem.activation.gated()
                       ? activate(problem.activation, linear1[i], linear1[problem.activated_width + i])
                       : gelu(linear1[i]);
  }
  return activated;
}

// A16W16: bf16 after Linear1, after the activation and after Linear2.
std::vector<float> linear_bf16(const std::vector<float>& row, const ExpertMatrix& matrix) {
  std::vector<float> out;
  for (double sum : multiply(row, matrix)) out.push_back(round_bf16(fl32(sum)));
  return out;
}

ExpertRow run_bf16(const Problem& problem, const ExpertMatrix& weight1, const ExpertMatrix& weight2,
                   const std::vector<float>& token) {
  ExpertRow row;
  row.token_codes = token;
  row.linear1 = linear_bf16(row.token_codes, weight1);
  row.activated = activate_row(problem, row.linear1);
  for (float& a : row.activated) a = round_bf16(a);
  row.requantised = row.activated;
  row.linear2 = linear_bf16(row.requantised, weight2);
  return row;
}

// A8W8-INT: exact integer sums, then the channel scale, then the row scale, each product rounded to float.
std::vector<float> linear_int8(const std::vector<float>& codes, float scale, const ExpertMatrix& matrix) {
  const std::vector<double> sums = multiply(codes, matrix);
  std::vector<float> out(sums.size());
  for (size_t n = 0; n < sums.size(); ++n) {
    const float t = fl32(sums[n]) * matrix.scale[n];
    out[n] = t * scale;
  }
  return out;
}

ExpertRow run_int8(const Problem& problem, const ExpertMatrix& weight1, const ExpertMatrix& weight2,
                   const std::vector<float>& token) {
  ExpertRow row;
  row.token_scale = quantise(token, row.token_codes);
  row.linear1 = linear_int8(row.token_codes, row.token_scale, weight1);
  row.activated = activate_row(problem, row.linear1);
  row.requantised_scale = quantise(row.activated, row.requantised);
  row.linear2 = linear_int8(row.requantised, row.requantised_scale, weight2);
  for (float& v : row.linear2) v = round_bf16(v);
  return row;
}

}  // namespace

ExpertRow run_expert(const Problem& problem, const ExpertMatrix& weight1, const ExpertMatrix& weight2,
                     const std::vector<float>& token) {
  return problem.int8 ? run_int8(problem, weight1, weight2, token)
                      : run_bf16(problem, weight1, weight2, token);
}

}  // namespace megamoe::reference
