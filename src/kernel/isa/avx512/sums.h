// The accumulators of the bf16 tiles by fp32 multiply-add: up to 12 rows x 32 columns.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx512/rows.h"

namespace megamoe::isa_avx512 {

inline constexpr int kMaxRows =
    12;  // 24 accumulators leave registers for weights, an activation and a product

// The accumulating instructions are one line of assembly each: left to itself the compiler regroups the
// operations of several steps and then has too few registers.

/// sum += x * w
[[gnu::always_inline]] inline void add_product(__m512& sum, __m512 x, __m512 w) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
}

/// Products of floats, to which bfloat16 is widened.
template <int kRows>
struct Bf16Sums {
  using Operand = float;
  static constexpr int kColumns = kernel::kPanelColumns;
  static constexpr int kOperands = 2;
  static constexpr int kRowCount = kRows;
  __m512 c[kRows][2];

  [[gnu::always_inline]] void start(const kernel::Tile&, int) { clear_rows(c); }
  [[gnu::always_inline]] void load(const void* from) { load_rows(c, from); }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    const __m512i w0 = _mm512_load_si512(weights), w1 = _mm512_load_si512(weights + 16);
    const auto as_floats = [](__m512i bits) __attribute__((always_inline)) {
      return _mm512_castsi512_ps(bits);
    };
    add(a, as_floats(_mm512_slli_epi32(w0, 16)), as_floats(_mm512_slli_epi32(w1, 16)));
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    add(a + kRows, as_floats(_mm512_and_si512(w0, high)), as_floats(_mm512_and_si512(w1, high)));
  }
  /// The products of one k.
  [[gnu::always_inline]] void add(const float* a, __m512 w0, __m512 w1) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r]);
      add_product(c[r][0], x, w0);
      add_product(c[r][1], x, w1);
    }
  }
  /// The same of panels that share their activations.
  template <int kPanels>
  [[gnu::always_inline]] static void add(Bf16Sums (&sums)[kPanels], const float* a,
                                         const __m512 (&w)[kPanels][2]) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r]);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        add_product(sums[p].c[r][0], x, w[p][0]);
        add_product(sums[p].c[r][1], x, w[p][1]);
      }
    }
  }
  /// C = scales * fl(sum * factor of the row) + (first ? 0 : C), where there are factors.
  [[gnu::always_inline]] void add_scaled(const float* factors, __m512 scale0, __m512 scale1, bool first,
                                         float* to) const {
    add_scaled_rows(c, factors, scale0, scale1, first, to);
  }
  [[gnu::always_inline]] void store(void* to) const {
    store_rows(c, to);
  }
};

}  // namespace megamoe::isa_avx512
