// How much of the exchange between ranks hides behind computing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megamoe/mega_moe.h"

namespace megamoe::cli {

/// Share of the time in dispatch and combine spans during which at least one thread of any rank computes. NaN
/// without such spans. `ranks` holds the spans of every rank, on one clock.
double hidden_share(const std::vector<std::vector<TraceSpan>>& ranks);

/// Seconds in each stage, of all threads of all ranks together, by stage name.
std::vector<std::pair<std::string, double>> stage_seconds(const std::vector<std::vector<TraceSpan>>& ranks);

}  // namespace megamoe::cli
