// How much of the exchange between ranks hides behind computing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megamoe/mega_moe.h"

namespace megamoe::cli {

/// Spans of one call by rank, on one clock.
using CallSpans = std::vector<std::vector<TraceSpan>>;

/// Share of the time in dispatch and combine spans during which at least one thread of any rank computes. NaN
/// without such spans.
double hidden_share(const std::vector<CallSpans>& calls);

/// Seconds in each stage, of all threads of all ranks and all calls together, by stage name.
std::vector<std::pair<std::string, double>> stage_seconds(const std::vector<CallSpans>& calls);

/// Shares of the time between the first and the last span of a call, on `threads` threads of each rank.
struct CallRest {
  double tail = 0;  ///< from where the first thread has nothing more to do
  double idle = 0;  ///< of all threads together, at any time, in no stage
};
/// NaN without spans.
CallRest call_rest(const CallSpans& ranks, int threads);
/// Medians over calls, each of its own; NaN without calls.
CallRest call_rest(const std::vector<CallSpans>& calls, int threads);

}  // namespace megamoe::cli
