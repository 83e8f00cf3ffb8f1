// The accumulators of the bf16 tiles: up to 14 rows x 32 columns by vdpbf16ps.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"

namespace megamoe::isa_avx512_bf16 {

inline constexpr int kMaxRows = 12;
/// Where the sums need registers for nothing but weights and an activation.
inline constexpr int kTallestRows = 14;

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

template <int kRows>
struct Bf16Sums {
  using Operand = int32_t;
  static constexpr int kColumns = kernel::kPanelColumns;
  static constexpr int kOperands = 1;
  static constexpr int kRowCount = kRows;
  __m512 c[kRows][2];

  [[gnu::always_inline]] void start(const kernel::Tile&, int) {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
  }
  [[gnu::always_inline]] void load(const void* from) {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      c[r][0] = _mm512_load_ps(static_cast<const float*>(from) + r * kernel::kPanelColumns);
      c[r][1] = _mm512_load_ps(static_cast<const float*>(from) + r * kernel::kPanelColumns + 16);
    }
  }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    add(_mm512_load_si512(weights), _mm512_load_si512(weights + 16), a);
  }
  [[gnu::always_inline]] void add(__m512i w0, __m512i w1, const Operand* a) {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(a[r]);
      dot(c[r][0], x, w0);
      dot(c[r][1], x, w1);
    }
  }
  /// The same of two panels, with one load of each activation.
  [[gnu::always_inline]] static void add(Bf16Sums (&sums)[2], const __m512i (&w)[2][2], const Operand* a) {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(a[r]);
      dot(sums[0].c[r][0], x, w[0][0]);
      dot(sums[0].c[r][1], x, w[0][1]);
      dot(sums[1].c[r][0], x, w[1][0]);
      dot(sums[1].c[r][1], x, w[1][1]);
    }
  }
  /// C = scales * fl(sum * factor of the row) + (first ? 0 : C), where there are factors.
  [[gnu::always_inline]] void add_scaled(const float* factors, __m512 scale0, __m512 scale1, bool first,
                                         float* to) const {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r, to += kernel::kPanelColumns) {
      __m512 value0 = c[r][0], value1 = c[r][1];
      if (factors != nullptr) {
        // Multiply-adds: multiplications that end in subnormal numbers are several times slower.
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
  [[gnu::always_inline]] void store(void* to) const {
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(static_cast<float*>(to) + r * kernel::kPanelColumns, c[r][0]);
      _mm512_store_ps(static_cast<float*>(to) + r * kernel::kPanelColumns + 16, c[r][1]);
    }
  }
};

}  // namespace megamoe::isa_avx512_bf16
