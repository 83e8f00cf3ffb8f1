// The loop of a Peak: as many independent accumulators as hide the latency of any such instruction.
#pragma once

#include <cstdint>

namespace megamoe::kernel {

inline constexpr int kPeakAccumulators = 12;
inline constexpr int kPeakUnroll = 8;

/// `Step::run(accumulator, a, b)` is the instruction on vectors of type V. Step is a type of the namespace of
/// the calling level and keeps the copies of the levels apart.
template <class Step, class V>
void peak_loop(int64_t iterations) {
  V c[kPeakAccumulators] = {};
  V a = {}, b = {};
  asm("" : "+v"(a), "+v"(b));  // not known to be zero
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kPeakUnroll; ++j) {
#pragma GCC unroll 12
      for (int k = 0; k < kPeakAccumulators; ++k) Step::run(c[k], a, b);
    }
  }
#pragma GCC unroll 12
  for (int k = 0; k < kPeakAccumulators; ++k) asm volatile("" ::"v"(c[k]));
}

/// Operations of one iteration of peak_loop with `products` multiply-adds in the instruction.
constexpr int64_t peak_operations(int64_t products) {
  return 2 * products * kPeakAccumulators * kPeakUnroll;
}

}  // namespace megamoe::kernel
