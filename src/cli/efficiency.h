// Efficiency of calls that take turns with passes of pure reading and pure arithmetic, pair by pair.
#pragma once

#include <cstdint>
#include <span>

namespace megamoe::cli {

/// Middle of the values, of the two in the middle where their number is even; 0 for none.
double median_of(std::span<const double> values);

/// What the machine did beside a call, or at best: per second; 0 = not measured.
struct Ceilings {
  double bytes = 0;       ///< read from memory
  double operations = 0;  ///< of bare arithmetic, 2 per multiply-add
};

/// One timed call and what it had to do.
struct TimedCall {
  double seconds = 0;
  double bytes = 0;       ///< of weights
  double operations = 0;  ///< of both products
};

struct Efficiency {
  double value = 0;   ///< time that the ceilings allow over time taken: the median of the pairs; NaN without
  int64_t pairs = 0;  ///< how many counted
};

/// Passes of one kind that stand around a call and differ by more than this say that the machine changed its
/// speed meanwhile: the call does not count.
inline constexpr double kSteadyPasses = 0.15;
/// Passes below this share of the run's ceiling were interrupted, not slow: machines of two speeds read at
/// 0.6 in the lower one.
inline constexpr double kWholePasses = 0.4;

/// Call i stands between `passes` i and i + 1 and is held against their mean; where a kind was not measured,
/// against that of `run`.
Efficiency paired_efficiency(std::span<const TimedCall> calls, std::span<const Ceilings> passes,
                             const Ceilings& run);

}  // namespace megamoe::cli
