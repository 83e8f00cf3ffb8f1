// How much of the exchange between ranks hides behind computing.
#pragma once

#include <vector>

#include "megamoe/mega_moe.h"

namespace megamoe::cli {

/// Share of the time in dispatch and combine spans during which at least one thread of any rank computes. NaN
/// without such spans. `ranks` holds the spans of one call of every rank, on one clock.
double hidden_share(const std::vector<std::vector<TraceSpan>>& ranks);

}  // namespace megamoe::cli
