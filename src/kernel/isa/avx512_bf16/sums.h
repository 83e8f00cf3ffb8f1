// The accumulators of the bf16 tiles: up to 14 rows x 32 columns by vdpbf16ps.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx512/rows.h"

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

  [[gnu::always_inline]] void start(const kernel::Tile&, int) { isa_avx512::clear_rows(c); }
  [[gnu::always_inline]] void load(const void* from) { isa_avx512::load_rows(c, from); }
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
    isa_avx512::add_scaled_rows(c, factors, scale0, scale1, first, to);
  }
  [[gnu::always_inline]] void store(void* to) const {
    isa_avx512::store_rows(c, to);
  }
};

}  // namespace megamoe::isa_avx512_bf16
