// What this machine can do at best, measured: arithmetic of single instructions, bandwidth of reading memory.
#pragma once

#include <string>

#include "kernel/contract.h"
#include "kernel/peak.h"

namespace megamoe::cli {

/// Operations per second (2 per multiply-add) of an instruction on `threads` threads together.
double peak_rate(const kernel::Peak& peak, int threads);

struct ArithmeticCeiling {
  std::string name;  ///< "vpdpbusd zmm"
  double rate = 0;   ///< operations per second
};
/// The fastest instruction that a family could use on a level: for bf16 its own dot product or float32 FMA,
/// for s8 the product of bytes. The generic level has no such loop; there its tile on cached data counts.
ArithmeticCeiling arithmetic_ceiling(kernel::Family family, Isa isa, int threads);

/// Bytes per second that `threads` threads read from memory far larger than the caches, on huge pages where
/// the system gives them, or on pages of 4 KiB.
double read_ceiling(int threads, bool huge = true);

}  // namespace megamoe::cli
