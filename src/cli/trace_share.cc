// How much of the exchange between ranks hides behind computing.
#include "cli/trace_share.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace megamoe::cli {
namespace {

using Stage = TraceSpan::Stage;
using Interval = std::pair<int64_t, int64_t>;

bool computes(Stage stage) {
  return stage == Stage::kPrepare || stage == Stage::kLinear1 || stage == Stage::kRequantise ||
         stage == Stage::kLinear2;
}
bool exchanges(Stage stage) {
  return stage == Stage::kDispatch || stage == Stage::kCombine;
}

/// Sorted intervals that do not touch and cover what the given ones cover.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> result;
  for (const Interval& i : intervals) {
    if (!result.empty() && i.first <= result.back().second) {
      result.back().second = std::max(result.back().second, i.second);
    } else {
      result.push_back(i);
    }
  }
  return result;
}

}  // namespace

double hidden_share(const std::vector<std::vector<TraceSpan>>& ranks) {
  std::vector<Interval> compute, exchange;
  for (const auto& spans : ranks) {
    for (const TraceSpan& span : spans) {
      if (computes(span.stage)) compute.emplace_back(span.begin_ns, span.end_ns);
      if (exchanges(span.stage)) exchange.emplace_back(span.begin_ns, span.end_ns);
    }
  }
  compute = merged(std::move(compute));
  double total = 0, hidden = 0;
  for (const auto& [begin, end] : exchange) {
    total += static_cast<double>(end - begin);
    auto at = std::lower_bound(compute.begin(), compute.end(), begin,
                               [](const Interval& i, int64_t time) { return i.second <= time; });
    for (; at != compute.end() && at->first < end; ++at) {
      hidden += static_cast<double>(std::min(end, at->second) - std::max(begin, at->first));
    }
  }
  return total > 0 ? hidden / total : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::pair<std::string, double>> stage_seconds(const std::vector<std::vector<TraceSpan>>& ranks) {
  std::vector<std::pair<std::string, double>> result;
  for (int stage = 0; stage <= static_cast<int>(Stage::kWait); ++stage) {
    double seconds = 0;
    for (const auto& spans : ranks) {
      for (const TraceSpan& span : spans) {
        if (static_cast<int>(span.stage) == stage)
          seconds += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
      }
    }
    result.emplace_back(trace_stage_name(static_cast<Stage>(stage)), seconds);
  }
  return result;
}

}  // namespace megamoe::cli
