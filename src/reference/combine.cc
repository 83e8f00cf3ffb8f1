// The sums of combine in float, in their order.
#include "reference/combine.h"

#include <algorithm>

#include "format/bf16.h"
#include "reference/coded_row.h"

namespace megamoe::reference {
namespace {

using Row = std::vector<float>;

// The first row starts a sum, so that it keeps the sign of a zero.
void add(Row& sum, const Row& row) {
  if (sum.empty()) {
    sum = row;
    return;
  }
  for (size_t h = 0; h < sum.size(); ++h) sum[h] = sum[h] + row[h];
}

Row weighted(const Row& row, float weight) {
  Row product(row);
  for (float& v : product) v = v * weight;
  return product;
}

}  // namespace

std::vector<float> returned_row(const Problem& problem, const std::vector<float>& row) {
  if (problem.combine_type == DType::kUndefined) return row;
  const CodedRow coded = encode(problem.combine_type, row);
  Row decoded(row.size());
  for (size_t h = 0; h < row.size(); ++h) {
    decoded[h] = static_cast<float>(value(coded, static_cast<int64_t>(h)));
  }
  return decoded;
}

std::vector<float> combine_token(const Problem& problem, const std::vector<const std::vector<float>*>& rows,
                                 const int64_t* experts, const std::vector<float>& weights,
                                 const std::vector<std::vector<float>>& shared) {
  const auto term = [&](int64_t k) {
    return problem.early_weights ? *rows[k] : weighted(*rows[k], weights[k]);
  };
  const auto domain = [&](int64_t k) { return problem.rank_of(experts[k]) / problem.merging_ranks; };
  Row sum;
  std::vector<bool> done(rows.size(), false);
  for (int64_t k = 0; k < problem.topk; ++k) {
    if (experts[k] == kUnusedSlot || done[k]) continue;
    std::vector<int64_t> members = {k};
    for (int64_t other = k + 1; problem.merging_ranks != 0 && other < problem.topk; ++other) {
      if (experts[other] != kUnusedSlot && domain(other) == domain(k)) members.push_back(other);
    }
    for (int64_t member : members) done[member] = true;
    if (members.size() == 1) {
      add(sum, term(k));
      continue;
    }
    // Several rows of one domain come as one bfloat16 row, summed there in the order of the experts.
    std::stable_sort(members.begin(), members.end(),
                     [&](int64_t a, int64_t b) { return experts[a] < experts[b]; });
    Row merged;
    for (int64_t member : members) add(merged, term(member));
    for (float& v : merged) v = format::bf16_to_float(format::bf16_from_float(v));
    add(sum, merged);
  }
  if (sum.empty()) sum.assign(static_cast<size_t>(problem.hidden), 0.0f);
  for (const Row& row : shared) add(sum, row);
  return sum;
}

}  // namespace megamoe::reference
