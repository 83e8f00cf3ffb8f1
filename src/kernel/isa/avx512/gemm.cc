// Matrix tiles of the avx512 level: 12 rows x 32 columns; bf16 by fp32 multiply-add, s8 by pairs of s16.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx512 {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 12;  // 24 accumulators leave registers for weights, an activation and a product

// The accumulating instructions are one line of assembly each: left to itself the compiler regroups the
// operations of several steps and then has too few registers.

/// sum += x * w
[[gnu::always_inline]] inline void add_product(__m512& sum, __m512 x, __m512 w) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
}

template <int kRows>
void tile_bf16(const kernel::Tile& t) {
  const uint32_t* weights = static_cast<const uint32_t*>(t.panel);
  const float* a = static_cast<const float*>(t.a);
  __m512 c[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
  const int64_t pairs = (t.k + 1) / 2;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kBf16, pairs, 1);
  kernel::k_loop(
      prefetch, pairs, [&]() __attribute__((always_inline)) {
        const __m512i w0 = _mm512_load_si512(weights), w1 = _mm512_load_si512(weights + 16);
        const __m512 even0 = _mm512_castsi512_ps(_mm512_slli_epi32(w0, 16));
        const __m512 even1 = _mm512_castsi512_ps(_mm512_slli_epi32(w1, 16));
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512 x = _mm512_set1_ps(a[r]);
          add_product(c[r][0], x, even0);
          add_product(c[r][1], x, even1);
        }
        const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
        const __m512 odd0 = _mm512_castsi512_ps(_mm512_and_si512(w0, high));
        const __m512 odd1 = _mm512_castsi512_ps(_mm512_and_si512(w1, high));
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512 x = _mm512_set1_ps(a[kRows + r]);
          add_product(c[r][0], x, odd0);
          add_product(c[r][1], x, odd1);
        }
        a += 2 * kRows;
        weights += kPanelColumns;
      });
  float* out = static_cast<float*>(t.c);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_ps(out + r * kPanelColumns, c[r][0]);
    _mm512_store_ps(out + r * kPanelColumns + 16, c[r][1]);
  }
}

/// sum += pairs of products; a pair is at most 2 * 2^14, so nothing saturates, also for -128.
[[gnu::always_inline]] inline void add_pairs(__m512i& sum, __m512i x, __m512i w) {
  asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(_mm512_madd_epi16(x, w)));
}

template <int kRows>
void tile_s8(const kernel::Tile& t) {
  const uint32_t* weights = static_cast<const uint32_t*>(t.panel);
  const int32_t* a = static_cast<const int32_t*>(t.a);
  __m512i c[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_si512();
  const int64_t quads = (t.k + 3) / 4;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kS8, quads, 1);
  kernel::k_loop(
      prefetch, quads, [&]() __attribute__((always_inline)) {
        const __m512i w0 = _mm512_load_si512(weights), w1 = _mm512_load_si512(weights + 16);
        // Even bytes of each dword (k 0, 2) sign-extended in place, then the odd ones (k 1, 3).
        const __m512i even0 = _mm512_srai_epi16(_mm512_slli_epi16(w0, 8), 8);
        const __m512i even1 = _mm512_srai_epi16(_mm512_slli_epi16(w1, 8), 8);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512i x = _mm512_set1_epi32(a[r]);
          add_pairs(c[r][0], x, even0);
          add_pairs(c[r][1], x, even1);
        }
        const __m512i odd0 = _mm512_srai_epi16(w0, 8), odd1 = _mm512_srai_epi16(w1, 8);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512i x = _mm512_set1_epi32(a[kRows + r]);
          add_pairs(c[r][0], x, odd0);
          add_pairs(c[r][1], x, odd1);
        }
        a += 2 * kRows;
        weights += kPanelColumns;
      });
  int32_t* out = static_cast<int32_t*>(t.c);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_si512(out + r * kPanelColumns, c[r][0]);
    _mm512_store_si512(out + r * kPanelColumns + 16, c[r][1]);
  }
}

using TileFunction = void (*)(const kernel::Tile&);
constexpr TileFunction kBf16Tiles[kMaxRows] = {tile_bf16<1>, tile_bf16<2>,  tile_bf16<3>,  tile_bf16<4>,
                                               tile_bf16<5>, tile_bf16<6>,  tile_bf16<7>,  tile_bf16<8>,
                                               tile_bf16<9>, tile_bf16<10>, tile_bf16<11>, tile_bf16<12>};
constexpr TileFunction kS8Tiles[kMaxRows] = {tile_s8<1>, tile_s8<2>,  tile_s8<3>,  tile_s8<4>,
                                             tile_s8<5>, tile_s8<6>,  tile_s8<7>,  tile_s8<8>,
                                             tile_s8<9>, tile_s8<10>, tile_s8<11>, tile_s8<12>};

void run_bf16(const kernel::Tile& t) {
  kBf16Tiles[t.rows - 1](t);
}
void run_s8(const kernel::Tile& t) {
  kS8Tiles[t.rows - 1](t);
}

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16AsFloat<Level>::bytes,
    .pack_rows = kernel::PackBf16AsFloat<Level>::pack,
    .tile = run_bf16,
};
constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsS16<Level>::bytes,
    .pack_rows = kernel::PackS8AsS16<Level>::pack,
    .tile = run_s8,
};

}  // namespace megamoe::isa_avx512
