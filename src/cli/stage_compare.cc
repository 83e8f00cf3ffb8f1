// Compares two results stage by stage and names the first stage that differs.
#include "cli/stage_compare.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "format/bf16.h"

namespace megamoe::cli {
namespace {

static_assert(std::size(kStageNames) == kStageCount);

/// Compares `count` numbers read by got(i) and want(i). NaN equals NaN. A bound of 0 asks for equality.
template <class Got, class Want>
StageDifference compare(int64_t count, double bound, const Got& got, const Want& want) {
  StageDifference d{1, 0, count, 0, -1, 0};
  double difference = 0, norm = 0;
  bool special = false;
  for (int64_t i = 0; i < count; ++i) {
    const auto g = static_cast<double>(got(i)), w = static_cast<double>(want(i));
    if (std::isfinite(w)) norm += w * w;
    if (g == w || (std::isnan(g) && std::isnan(w))) continue;
    ++d.differing;
    if (d.first < 0) d.first = i;
    if (std::isfinite(g) && std::isfinite(w)) {
      difference += (g - w) * (g - w);
    } else {
      special = true;
    }
  }
  d.relative = difference == 0 ? 0
               : norm == 0     ? std::numeric_limits<double>::infinity()
                               : std::sqrt(difference / norm);
  d.differs = special || (bound == 0 ? d.differing > 0 : d.relative >= bound);
  return d;
}

}  // namespace

void compare_stages(const reference::Stages& got, const reference::Stages& want, double bound,
                    StageDifferences& out) {
  const struct {
    const std::vector<float>& got;
    const std::vector<float>& want;
    double bound;
  } parts[] = {
      {got.token_codes, want.token_codes, 0},     {got.token_scales, want.token_scales, 0},
      {got.linear1, want.linear1, bound},         {got.activated, want.activated, bound},
      {got.requantised, want.requantised, bound}, {got.requantised_scales, want.requantised_scales, bound},
      {got.linear2, want.linear2, bound}};
  auto put = [](const auto& g, const auto& w, double limit) -> StageDifference {
    if (g.empty() && !w.empty()) return {0, 0, 0, 0, -1, 0};
    if (g.size() != w.size())
      return {1, 1, static_cast<int64_t>(w.size()), static_cast<int64_t>(w.size()), 0, INFINITY};
    return compare(
        static_cast<int64_t>(w.size()), limit, [&](int64_t i) { return g[static_cast<size_t>(i)]; },
        [&](int64_t i) { return w[static_cast<size_t>(i)]; });
  };
  size_t stage = 0;
  out[stage++] = put(got.home, want.home, 0);
  for (const auto& part : parts) out[stage++] = put(part.got, part.want, part.bound);
}

void compare_outputs(const uint16_t* y, const uint16_t* want_y, int64_t count, const int32_t* nums,
                     const int32_t* want_nums, int64_t experts, double bound, StageDifferences& out) {
  out[kStageCount - 2] = compare(
      experts, 0, [&](int64_t i) { return nums[i]; }, [&](int64_t i) { return want_nums[i]; });
  out[kStageCount - 1] = compare(
      count, bound, [&](int64_t i) { return format::bf16_to_float(y[i]); },
      [&](int64_t i) { return format::bf16_to_float(want_y[i]); });
}

int first_differing_stage(const StageDifferences& stages) {
  const auto* found =
      std::find_if(stages.begin(), stages.end(), [](const auto& d) { return d.differs != 0; });
  return found == stages.end() ? -1 : static_cast<int>(found - stages.begin());
}

}  // namespace megamoe::cli
