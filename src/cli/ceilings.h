// What this machine can do at best, measured: arithmetic of single instructions, bandwidth of reading memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/team.h"
#include "cli/efficiency.h"
#include "kernel/contract.h"
#include "kernel/peak.h"

namespace megamoe::cli {

/// Operations per second (2 per multiply-add) of an instruction on `threads` threads together.
double peak_rate(const kernel::Peak& peak, int threads);

struct ArithmeticCeiling {
  std::string name;                    ///< "vpdpbusd zmm"
  double rate = 0;                     ///< operations per second
  const kernel::Peak* peak = nullptr;  ///< the loop measured, or
  const kernel::Gemm* tile = nullptr;  ///< the tile
};
/// The fastest instruction that a family could use on a level: for bf16 its own dot product or float32 FMA,
/// for s8 the product of bytes. The generic level has no such loop; there its tile on cached data counts.
ArithmeticCeiling arithmetic_ceiling(kernel::Family family, Isa isa, int threads);

/// Memory far larger than the caches, on huge pages where the system gives them or on pages of 4 KiB, a part
/// for each thread. A thread goes on where it stopped, so that nothing it reads is in a cache.
class ReadRange {
 public:
  using Clock = std::chrono::steady_clock;
  static Result<ReadRange> make(int threads, bool huge = true);
  /// Bytes per second that the calling thread reads, until then.
  double read(int thread, Clock::time_point until);
  /// Bytes per second that `threads` threads read together: the best of some rounds of several ways to read.
  /// read() goes the fastest of them from then on.
  double ceiling(int threads);

 private:
  base::Pages pages_;
  size_t part_ = 0;           ///< words of a thread
  std::vector<size_t> next_;  ///< word of its part, by thread
  size_t way_ = 0;
};

/// What a layer is held against while it runs: reading and the arithmetic of its two products, on the threads
/// of each rank.
class CeilingPasses {
 public:
  /// `range` has a thread for each one of all ranks, `linear1` and `linear2` are of the families of both
  /// products.
  CeilingPasses(ReadRange& range, const ArithmeticCeiling& linear1, const ArithmeticCeiling& linear2)
      : range_(range), linear1_(linear1), linear2_(linear2) {}

  /// Of both products together, two of three of whose operations are Linear1's.
  static double of_both(double linear1_rate, double linear2_rate) {
    return 3 / (2 / linear1_rate + 1 / linear2_rate);
  }
  /// One pass on one rank, `seconds` for each kind.
  Ceilings run(base::Team& team, int rank, double seconds, bool reading, bool computing) const;

 private:
  ReadRange& range_;
  const ArithmeticCeiling &linear1_, &linear2_;
};

}  // namespace megamoe::cli
