// What the spans of a call say: what hides behind computing, where the time goes, who has nothing to do.
#include "cli/trace_share.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cli/efficiency.h"

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

double hidden_share(const std::vector<CallSpans>& calls) {
  double total = 0, hidden = 0;
  for (const CallSpans& ranks : calls) {
    std::vector<Interval> compute, exchange;
    for (const auto& spans : ranks) {
      for (const TraceSpan& span : spans) {
        if (computes(span.stage)) compute.emplace_back(span.begin_ns, span.end_ns);
        if (exchanges(span.stage)) exchange.emplace_back(span.begin_ns, span.end_ns);
      }
    }
    compute = merged(std::move(compute));
    for (const auto& [begin, end] : exchange) {
      total += static_cast<double>(end - begin);
      auto at = std::lower_bound(compute.begin(), compute.end(), begin,
                                 [](const Interval& i, int64_t time) { return i.second <= time; });
      for (; at != compute.end() && at->first < end; ++at) {
        hidden += static_cast<double>(std::min(end, at->second) - std::max(begin, at->first));
      }
    }
  }
  return total > 0 ? hidden / total : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::pair<std::string, double>> stage_seconds(const std::vector<CallSpans>& calls) {
  double seconds[static_cast<int>(Stage::kWait) + 1] = {};
  for (const CallSpans& ranks : calls) {
    for (const auto& spans : ranks) {
      for (const TraceSpan& span : spans) {
        seconds[static_cast<int>(span.stage)] += static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
      }
    }
  }
  std::vector<std::pair<std::string, double>> result;
  for (int stage = 0; stage <= static_cast<int>(Stage::kWait); ++stage) {
    result.emplace_back(trace_stage_name(static_cast<Stage>(stage)), seconds[stage]);
  }
  return result;
}

CallRest call_rest(const CallSpans& ranks, int threads) {
  int64_t begin = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::min(), busy = 0;
  std::vector<int64_t> last;  // end of the work of each thread
  for (const auto& spans : ranks) {
    const size_t rank = last.size();
    last.resize(rank + static_cast<size_t>(threads), std::numeric_limits<int64_t>::min());
    for (const TraceSpan& span : spans) {
      begin = std::min(begin, span.begin_ns);
      end = std::max(end, span.end_ns);
      if (span.stage == Stage::kWait) continue;
      busy += span.end_ns - span.begin_ns;
      int64_t& of_thread = last[rank + static_cast<size_t>(span.thread)];
      of_thread = std::max(of_thread, span.end_ns);
    }
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (end <= begin) return {kNone, kNone};
  const auto all = static_cast<double>(end - begin);
  const int64_t first = std::max(begin, *std::min_element(last.begin(), last.end()));
  return {static_cast<double>(end - first) / all,
          1 - static_cast<double>(busy) / (all * static_cast<double>(last.size()))};
}

CallRest call_rest(const std::vector<CallSpans>& calls, int threads) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (calls.empty()) return {kNone, kNone};
  std::vector<double> tails, idles;
  for (const CallSpans& call : calls) {
    const CallRest rest = call_rest(call, threads);
    tails.push_back(rest.tail);
    idles.push_back(rest.idle);
  }
  return {median_of(tails), median_of(idles)};
}

}  // namespace megamoe::cli
