// Matrix tiles of the avx2 level: 6 rows x 16 columns at a time, the two halves of a panel one after the
// other.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx2/fp8_tile.h"
#include "kernel/isa/avx2/int4_tile.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/isa/avx2/rows.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx2 {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 6;  // 12 accumulators, 2 vectors of weights, 1 activation, 1 product: 16 registers
constexpr int kMaxCodedRows = 5;  // 10 accumulators, 2 scales, 2 vectors of weights, 1 activation

/// Few rows need all columns at once, to have enough sums in flight and to read the panel as one stream.
constexpr int kStreamRows = 2;
constexpr int vectors_for(int rows) {
  return rows <= kStreamRows ? 4 : 2;
}

// The accumulating instructions are one line of assembly each: left to itself the compiler regroups the
// operations of several steps and then has too few registers.

/// sum += x * w
[[gnu::always_inline]] inline void add_product(__m256& sum, __m256 x, __m256 w) {
  __m256 added = sum;  // an array element as the operand would keep the array in memory
  asm("vfmadd231ps %2, %1, %0" : "+x"(added) : "x"(x), "x"(w));
  sum = added;
}

template <int kRows>
struct Bf16Sums {
  using Operand = float;
  static constexpr int kVectors = vectors_for(kRows);
  static constexpr int kColumns = kVectors * 8;
  static constexpr int kOperands = 2;
  static constexpr int kRowCount = kRows;
  __m256 c[kRows][kVectors];

  [[gnu::always_inline]] void start(const kernel::Tile&, int) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) c[r][j] = _mm256_setzero_ps();
    }
  }
  [[gnu::always_inline]] void load(const void* from) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j)
        c[r][j] = _mm256_load_ps(static_cast<const float*>(from) + r * kPanelColumns + 8 * j);
    }
  }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    __m256 w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      w[j] = _mm256_castsi256_ps(_mm256_slli_epi32(load_dwords(weights + 8 * j), 16));
    add(a, w);
    asm("" : "+r"(weights));  // load them again: there is no register to keep them in
    // The upper bf16 of each dword by two shifts, because a mask would take a register.
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      w[j] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(load_dwords(weights + 8 * j), 16), 16));
    }
    add(a + kRows, w);
  }
  [[gnu::always_inline]] void store(void* to) const {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j)
        _mm256_store_ps(static_cast<float*>(to) + r * kPanelColumns + 8 * j, c[r][j]);
    }
  }
  /// The products of one k with vectors number kVector and kVector + 1 of the columns.
  template <int kVector>
  [[gnu::always_inline]] void add(const float* a, __m256 w0, __m256 w1) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r);
      add_product(c[r][kVector], x, w0);
      add_product(c[r][kVector + 1], x, w1);
    }
  }

 private:
  [[gnu::always_inline]] void add(const float* a, const __m256 (&w)[kVectors]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) add_product(c[r][j], x, w[j]);
    }
  }
};

/// sum += pairs of products; a pair is at most 2 * 2^14, so nothing saturates, also for -128.
[[gnu::always_inline]] inline void add_pairs(__m256i& sum, __m256i x, __m256i w) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(x, w)));
}

template <int kRows>
struct S8Sums {
  using Operand = int32_t;
  static constexpr int kVectors = vectors_for(kRows);
  static constexpr int kColumns = kVectors * 8;
  static constexpr int kOperands = 2;
  static constexpr int kRowCount = kRows;
  __m256i c[kRows][kVectors];

  [[gnu::always_inline]] void start(const kernel::Tile&, int) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) c[r][j] = _mm256_setzero_si256();
    }
  }
  [[gnu::always_inline]] void load(const void* from) {
    load_rows(c, from);
  }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    // Even bytes of each dword (k 0, 2) sign-extended in place, then the odd ones (k 1, 3).
    __m256i w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      w[j] = _mm256_srai_epi16(_mm256_slli_epi16(load_dwords(weights + 8 * j), 8), 8);
    add(a, w);
    asm("" : "+r"(weights));
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) w[j] = _mm256_srai_epi16(load_dwords(weights + 8 * j), 8);
    add(a + kRows, w);
  }
  [[gnu::always_inline]] void store(void* to) const {
    store_rows(c, to);
  }

  [[gnu::always_inline]] void start_codes(const kernel::Tile& t, int column) {
    start(t, column);
  }
  [[gnu::always_inline]] void step_codes(const uint32_t* codes, const Operand* a) {
    step_last_codes(codes, a);
    add_nibbles<8>(codes, a + 2 * kRows);
    add_nibbles<0>(codes, a + 3 * kRows);
  }
  [[gnu::always_inline]] void step_last_codes(const uint32_t* codes, const Operand* a) {
    add_nibbles<12>(codes, a);
    add_nibbles<4>(codes, a + kRows);
  }
  [[gnu::always_inline]] void end_codes() {}

 private:
  /// Of each 16 bits the nibble that a shift by kLeft brings to the top, as the pair of k of one operand.
  template <int kLeft>
  [[gnu::always_inline]] void add_nibbles(const uint32_t* codes, const Operand* a) {
    asm("" : "+r"(codes), "+x"(c[kRows - 1][kVectors - 1]));  // not before the products that came first
    __m256i w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      w[j] = _mm256_srai_epi16(_mm256_slli_epi16(load_dwords(codes + 8 * j), kLeft), 12);
    add(a, w);
  }
  [[gnu::always_inline]] void add(const int32_t* a, const __m256i (&w)[kVectors]) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256i x = _mm256_set1_epi32(a[r]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) add_pairs(c[r][j], x, w[j]);
    }
  }
};

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_6x32_avx2",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16AsFloat<Level>::bytes,
    .pack_rows = kernel::PackBf16AsFloat<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kBf16, Bf16Sums, kMaxRows, kStreamRows>::run,
    .coded_rows = {0, kMaxCodedRows, kMaxCodedRows},
    .coded_tile = {nullptr, Fp8Tiles<Level, E4M3Halves, Bf16Sums, kMaxCodedRows>::run,
                   Fp8Tiles<Level, E5M2Halves, Bf16Sums, kMaxCodedRows>::run},
    .stream = {{6 << 10, 3 << 10, kStreamRows}},
};
constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_6x32_avx2",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsS16<Level>::bytes,
    .pack_rows = kernel::PackS8AsS16<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kS8, S8Sums, kMaxRows, kStreamRows>::run,
    .coded_rows = {0, 0, 0, 0, kMaxRows},
    .coded_tile = {nullptr, nullptr, nullptr, nullptr, Int4Tiles<Level, S8Sums, kMaxRows>::run},
    .stream = {{6 << 10, 3 << 10, kStreamRows}},
};

}  // namespace megamoe::isa_avx2
