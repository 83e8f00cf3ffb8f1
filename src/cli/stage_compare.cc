// Compares two results stage by stage and names the first stage that differs.
#include "cli/stage_compare.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "format/bf16.h"

namespace megamoe::cli {
namespace {

constexpr const char* kOutputNames[] = {"expert_token_nums", "y"};

/// Compares `count` numbers read by got(i) and want(i), in rows of `columns`. NaN equals NaN. A bound of 0
/// asks for equality.
template <class Got, class Want>
StageDifference compare(int64_t count, int64_t columns, double bound, const Got& got, const Want& want) {
  StageDifference d{1, 0, count, columns, 0, -1, 0};
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

/// Element i of the values of a stage.
double value(const TensorView& values, int64_t i) {
  return values.dtype == DType::kInt64 ? static_cast<double>(static_cast<const int64_t*>(values.data)[i])
                                       : static_cast<const float*>(values.data)[i];
}

}  // namespace

const char* stage_name(int stage) {
  return stage < kCountsStage ? stage_table()[static_cast<size_t>(stage)].name
                              : kOutputNames[stage - kCountsStage];
}

void compare_stages(const Stages& got, const Stages& want, double bound, StageDifferences& out) {
  for (size_t stage = 0; stage < stage_table().size(); ++stage) {
    const StageInfo& info = stage_table()[stage];
    const TensorView g = info.values(got), w = info.values(want);
    const int64_t count = w.shape[0];
    const int64_t columns = count / std::max<int64_t>(1, stage_rows(info, want));
    StageDifference& d = out[stage];
    if (g.shape[0] == 0) {
      d = {0, 0, 0, columns, 0, -1, 0};  // not kept, or without rows
      if (count != 0 && info.exact) d = {1, 1, count, columns, count, 0, INFINITY};
    } else if (g.shape[0] != count) {
      d = {1, 1, count, columns, count, 0, INFINITY};
    } else {
      d = compare(
          count, columns, info.exact ? 0 : bound, [&](int64_t i) { return value(g, i); },
          [&](int64_t i) { return value(w, i); });
    }
  }
}

void compare_outputs(const uint16_t* y, const uint16_t* want_y, int64_t tokens, int64_t hidden,
                     const int32_t* nums, const int32_t* want_nums, int64_t experts, double bound,
                     StageDifferences& out) {
  out[kCountsStage] = compare(
      experts, 1, 0, [&](int64_t i) { return nums[i]; }, [&](int64_t i) { return want_nums[i]; });
  out[kOutputStage] = compare(
      tokens * hidden, hidden, bound, [&](int64_t i) { return format::bf16_to_float(y[i]); },
      [&](int64_t i) { return format::bf16_to_float(want_y[i]); });
}

int first_differing_stage(const StageDifferences& stages) {
  const auto* found =
      std::find_if(stages.begin(), stages.end(), [](const auto& d) { return d.differs != 0; });
  return found == stages.end() ? -1 : static_cast<int>(found - stages.begin());
}

}  // namespace megamoe::cli
