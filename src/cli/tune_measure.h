// Block sizes against the defaults, call by call: times of pairs and what they say.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/layer_job.h"
#include "moe/tuning.h"

namespace megamoe::cli {

/// Block sizes beside the defaults. None: the defaults once more, which shows the noise.
using Candidate = std::vector<std::pair<const moe::BlockSize*, int64_t>>;

/// Fewer pairs say nothing about their noise.
inline constexpr int64_t kLeastPairs = 5;

/// Times of the calls of a candidate on one batch, each with the call of the defaults beside it, in seconds.
struct Pairs {
  std::vector<double> candidate, fallback;

  double median() const;           ///< of the candidate
  double fallback_median() const;  ///< of the defaults
  double ratio() const;            ///< median of candidate / defaults, pair by pair
  /// What the logarithm of that median may be off by: three standard errors, more where there are few pairs,
  /// and infinity with fewer than kLeastPairs.
  double noise() const;
};

/// Times of pairs of calls on all ranks, in memory that processes share.
class PairTimes {
 public:
  static Result<PairTimes> make(int64_t pairs, int64_t repeats, int ranks);
  /// Begin and end of a call on a rank; `which` is 0 for the candidate and 1 for the defaults.
  double* at(int64_t pair, int64_t repeat, int64_t which, int64_t rank) const {
    return times_.data() + (((pair * repeats_ + repeat) * 2 + which) * ranks_ + rank) * 2;
  }
  /// First rank in to last rank out, for the first `repeats` repetitions.
  Pairs collect(int64_t pair, int64_t repeats) const;
  /// Seconds of a clock that all ranks share.
  static double now();

 private:
  SharedArray<double> times_;
  int64_t repeats_ = 0, ranks_ = 0;
};

/// Pairs of one candidate, by batch.
using Measured = std::vector<Pairs>;

/// What a candidate gains over all batches: the logarithm of the speed-up, above noise or not.
struct Gain {
  double value = 0;
  double noise = 0;
  bool worse_somewhere = false;  ///< slower on some batch by more than the noise there
  bool wins() const { return value > noise && !worse_somewhere; }
};
/// `control` is the defaults against themselves: what it seems to gain or lose is noise.
Gain gain_of(const Measured& measured, const Measured& control);

/// The noise of pairs as text: "1 %", "-" with too few pairs, ">100 %" where a number says no more.
std::string noise_text(double noise);
/// Whether the defaults differ from themselves by more than any block size is likely to gain. A noise that
/// too few pairs left unknown is not one.
bool too_noisy(const Measured& control);

struct TuneRun {
  moe::TuningKey key;
  std::vector<Measured> measured;  ///< by candidate
};

/// Runs the candidates on all batches of a job, up to `repeats` pairs each, in turn and in alternating order.
/// Each batch may take its share of `seconds`, packing counted, but gets kLeastPairs of each candidate.
Result<TuneRun> measure_candidates(const LayerJob& job, const std::string& scenario,
                                   const CommonOptions& common, const std::vector<Candidate>& candidates,
                                   int64_t repeats, double seconds);

}  // namespace megamoe::cli
