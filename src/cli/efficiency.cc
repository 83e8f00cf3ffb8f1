// Efficiency of calls that take turns with passes of pure reading and pure arithmetic, pair by pair.
#include "cli/efficiency.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace megamoe::cli {
namespace {

bool steady(double before, double after, double run) {
  const bool measured = before > 0 && after > 0;
  return std::abs(before - after) <= kSteadyPasses * std::max(before, after) &&
         (!measured || std::min(before, after) >= kWholePasses * run);
}

double beside(double before, double after, double run) {
  return before > 0 && after > 0 ? (before + after) / 2 : run;
}

}  // namespace

double median_of(std::span<const double> values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

Efficiency paired_efficiency(std::span<const TimedCall> calls, std::span<const Ceilings> passes,
                             const Ceilings& run) {
  std::vector<double> shares;
  for (size_t i = 0; i < calls.size() && i + 1 < passes.size(); ++i) {
    const Ceilings &before = passes[i], &after = passes[i + 1];
    if (!steady(before.bytes, after.bytes, run.bytes)) continue;
    if (!steady(before.operations, after.operations, run.operations)) continue;
    const double reading = calls[i].bytes / beside(before.bytes, after.bytes, run.bytes);
    const double computing =
        calls[i].operations / beside(before.operations, after.operations, run.operations);
    shares.push_back(std::max(reading, computing) / calls[i].seconds);
  }
  return {shares.empty() ? std::numeric_limits<double>::quiet_NaN() : median_of(shares),
          static_cast<int64_t>(shares.size())};
}

}  // namespace megamoe::cli
