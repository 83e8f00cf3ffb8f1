// Rows of 32 accumulators, two vectors each: from and to C. The levels from
// avx512 on keep their sums so.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"

namespace megamoe::isa_avx512 {

template <int kRows>
[[gnu::always_inline]] inline void clear_rows(__m512 (&c)[kRows][2]) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
}

template <int kRows>
[[gnu::always_inline]] inline void load_rows(__m512 (&c)[kRows][2], const void* from) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    c[r][0] = _mm512_load_ps(static_cast<const float*>(from) + r * kernel::kPanelColumns);
    c[r][1] = _mm512_load_ps(static_cast<const float*>(from) + r * kernel::kPanelColumns + 16);
  }
}
template <int kRows>
[[gnu::always_inline]] inline void load_rows(__m512i (&c)[kRows][2], const void* from) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    c[r][0] = _mm512_load_si512(static_cast<const int32_t*>(from) + r * kernel::kPanelColumns);
    c[r][1] = _mm512_load_si512(static_cast<const int32_t*>(from) + r * kernel::kPanelColumns + 16);
  }
}

template <int kRows>
[[gnu::always_inline]] inline void store_rows(const __m512 (&c)[kRows][2], void* to) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_ps(static_cast<float*>(to) + r * kernel::kPanelColumns, c[r][0]);
    _mm512_store_ps(static_cast<float*>(to) + r * kernel::kPanelColumns + 16, c[r][1]);
  }
}
template <int kRows>
[[gnu::always_inline]] inline void store_rows(const __m512i (&c)[kRows][2], void* to) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_si512(static_cast<int32_t*>(to) + r * kernel::kPanelColumns, c[r][0]);
    _mm512_store_si512(static_cast<int32_t*>(to) + r * kernel::kPanelColumns + 16, c[r][1]);
  }
}

/// C = scales * fl(sum * factor of the row) + (first ? 0 : C), where there are
/// factors.
template <int kRows>
[[gnu::always_inline]] inline void add_scaled_rows(const __m512 (&c)[kRows][2], const float* factors,
                                                   __m512 scale0, __m512 scale1, bool first, float* to) {
#pragma GCC unroll 14
  for (int r = 0; r < kRows; ++r, to += kernel::kPanelColumns) {
    __m512 value0 = c[r][0], value1 = c[r][1];
    if (factors != nullptr) {
      // Multiply-adds: multiplications that end in subnormal numbers are
      // several times slower.
      const __m512 factor = _mm512_set1_ps(factors[r]), zero = _mm512_set1_ps(-0.0f);
      value0 = _mm512_fmadd_ps(value0, factor, zero);
      value1 = _mm512_fmadd_ps(value1, factor, zero);
    }
    const __m512 before0 = first ? _mm512_setzero_ps() : _mm512_load_ps(to);
    const __m512 before1 = first ? _mm512_setzero_ps() : _mm512_load_ps(to + 16);
    _mm512_store_ps(to, _mm512_fmadd_ps(value0, scale0, before0));
    _mm512_store_ps(to + 16, _mm512_fmadd_ps(value1, scale1, before1));
  }
}

}  // namespace megamoe::isa_avx512
