// Matrix tiles of the avx512 level: 12 rows x 32 columns; bf16 by fp32 multiply-add, s8 by pairs of s16.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx2/int4_tile.h"
#include "kernel/isa/avx512/coded_tile.h"
#include "kernel/isa/avx512/rows.h"
#include "kernel/isa/avx512/sums.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx512 {
namespace {

using kernel::kPanelColumns;
struct Level;

// Rows whose sums leave registers for codes, their decoded values and scales, of one panel and of two.
constexpr int kCodedRows = 10, kPairedRows = 3, kPairedNibbleRows = 4;

/// sum += pairs of products; a pair is at most 2 * 2^14, so nothing saturates, also for -128.
[[gnu::always_inline]] inline void add_pairs(__m512i& sum, __m512i x, __m512i w) {
  asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(_mm512_madd_epi16(x, w)));
}

template <int kRows>
struct S8Sums {
  using Operand = int32_t;
  static constexpr int kColumns = kPanelColumns;
  static constexpr int kOperands = 2;
  static constexpr int kRowCount = kRows;
  __m512i c[kRows][2];

  [[gnu::always_inline]] void start(const kernel::Tile&, int) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_si512();
  }
  [[gnu::always_inline]] void load(const void* from) {
    load_rows(c, from);
  }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    const __m512i w0 = _mm512_load_si512(weights), w1 = _mm512_load_si512(weights + 16);
    // Even bytes of each dword (k 0, 2) sign-extended in place, then the odd ones (k 1, 3).
    add(a, _mm512_srai_epi16(_mm512_slli_epi16(w0, 8), 8), _mm512_srai_epi16(_mm512_slli_epi16(w1, 8), 8));
    add(a + kRows, _mm512_srai_epi16(w0, 8), _mm512_srai_epi16(w1, 8));
  }
  [[gnu::always_inline]] void store(void* to) const {
    store_rows(c, to);
  }

  // Words of codes hold the k of a pair in nibbles 0, 2, 1 and 3: shifted to the top and back they are
  // signed.
  [[gnu::always_inline]] void start_codes(const kernel::Tile& t, int column) {
    start(t, column);
  }
  [[gnu::always_inline]] void step_codes(const uint32_t* codes, const Operand* a) {
    step_last_codes(codes, a);
    add_nibbles<1>(codes, a + 2 * kRows);
    add_nibbles<3>(codes, a + 3 * kRows);
  }
  [[gnu::always_inline]] void step_last_codes(const uint32_t* codes, const Operand* a) {
    add_nibbles<0>(codes, a);
    add_nibbles<2>(codes, a + kRows);
  }
  [[gnu::always_inline]] void end_codes() {}

 private:
  template <int kNibble>
  [[gnu::always_inline]] void add_nibbles(const uint32_t* codes, const Operand* a) {
    // Not before the products that came first: there are no registers to keep more of them in.
    asm("" : "+r"(codes), "+v"(c[kRows - 1][1]));
    const auto top = [](__m512i words) __attribute__((always_inline)) {
      return _mm512_slli_epi16(words, 12 - 4 * kNibble);
    };
    add(a, _mm512_srai_epi16(top(_mm512_loadu_si512(codes)), 12),
        _mm512_srai_epi16(top(_mm512_loadu_si512(codes + 16)), 12));
  }
  [[gnu::always_inline]] void add(const int32_t* a, __m512i w0, __m512i w1) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(a[r]);
      add_pairs(c[r][0], x, w0);
      add_pairs(c[r][1], x, w1);
    }
  }
};

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16AsFloat<Level>::bytes,
    .pack_rows = kernel::PackBf16AsFloat<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kBf16, Bf16Sums, kMaxRows>::run,
    .coded_rows = {0, kCodedRows, kCodedRows, kCodedRows},
    .paired_rows = {0, kPairedRows, kPairedRows, kPairedNibbleRows},
    .coded_tile = {nullptr, CodedTiles<Level, E4M3Codes, Bf16Sums, kCodedRows, kPairedRows>::run,
                   CodedTiles<Level, E5M2Codes, Bf16Sums, kCodedRows, kPairedRows>::run,
                   CodedTiles<Level, E2M1Codes, Bf16Sums, kCodedRows, kPairedNibbleRows>::run},
};
constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsS16<Level>::bytes,
    .pack_rows = kernel::PackS8AsS16<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kS8, S8Sums, kMaxRows>::run,
    .coded_rows = {0, 0, 0, 0, kMaxRows},
    .coded_tile = {nullptr, nullptr, nullptr, nullptr, isa_avx2::Int4Tiles<Level, S8Sums, kMaxRows>::run},
};

}  // namespace megamoe::isa_avx512
