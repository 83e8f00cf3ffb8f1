// Rows of accumulators, kVectors vectors each: from and to C, which has 32 columns.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx2/load.h"

namespace megamoe::isa_avx2 {

template <int kRows, int kVectors>
[[gnu::always_inline]] inline void load_rows(__m256i (&c)[kRows][kVectors], const void* from) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      c[r][j] = load_dwords(static_cast<const int32_t*>(from) + r * kernel::kPanelColumns + 8 * j);
  }
}

template <int kRows, int kVectors>
[[gnu::always_inline]] inline void store_rows(const __m256i (&c)[kRows][kVectors], void* to) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      int32_t* const row = static_cast<int32_t*>(to) + r * kernel::kPanelColumns + 8 * j;
      _mm256_store_si256(reinterpret_cast<__m256i*>(row), c[r][j]);
    }
  }
}

}  // namespace megamoe::isa_avx2
