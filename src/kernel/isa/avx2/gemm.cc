// Matrix tiles of the avx2 level: 6 rows x 16 columns at a time, the two halves of a panel one after the
// other.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx2 {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 6;  // 12 accumulators, 2 vectors of weights, 1 activation, 1 product: 16 registers

/// Few rows need all columns at once, to have enough sums in flight and to read the panel as one stream.
constexpr int vectors_for(int rows) {
  return rows <= 2 ? 4 : 2;
}

__m256i load(const uint32_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

/// The upper bf16 of each dword as float. Two shifts, because a mask would take a register.
__m256 odd_half(__m256i w) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_srli_epi32(w, 16), 16));
}

// The accumulating instructions are one line of assembly each: left to itself the compiler regroups the
// operations of several steps and then has too few registers.

/// sum += x * w
[[gnu::always_inline]] inline void add_product(__m256& sum, __m256 x, __m256 w) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
}

template <int kRows>
void tile_bf16(const kernel::Tile& t) {
  constexpr int kVectors = vectors_for(kRows);
  constexpr int kPasses = 4 / kVectors;
  const int64_t pairs = (t.k + 1) / 2;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kBf16, pairs, kPasses);
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = pass * kVectors * 8;
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const float* a = static_cast<const float*>(t.a);
    __m256 c[kRows][kVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) c[r][j] = _mm256_setzero_ps();
    }
    kernel::k_loop(
        prefetch, pairs, [&]() __attribute__((always_inline)) {
          __m256 w[kVectors];
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j)
            w[j] = _mm256_castsi256_ps(_mm256_slli_epi32(load(weights + 8 * j), 16));
#pragma GCC unroll 6
          for (int r = 0; r < kRows; ++r) {
            const __m256 x = _mm256_broadcast_ss(a + r);
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) add_product(c[r][j], x, w[j]);
          }
          asm("" : "+r"(weights));  // load them again: there is no register to keep them in
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j) w[j] = odd_half(load(weights + 8 * j));
#pragma GCC unroll 6
          for (int r = 0; r < kRows; ++r) {
            const __m256 x = _mm256_broadcast_ss(a + kRows + r);
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) add_product(c[r][j], x, w[j]);
          }
          a += 2 * kRows;
          weights += kPanelColumns;
        });
    float* out = static_cast<float*>(t.c) + column;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) _mm256_store_ps(out + r * kPanelColumns + 8 * j, c[r][j]);
    }
  }
}

/// sum += pairs of products; a pair is at most 2 * 2^14, so nothing saturates, also for -128.
[[gnu::always_inline]] inline void add_pairs(__m256i& sum, __m256i x, __m256i w) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(x, w)));
}

template <int kRows>
void tile_s8(const kernel::Tile& t) {
  constexpr int kVectors = vectors_for(kRows);
  constexpr int kPasses = 4 / kVectors;
  const int64_t quads = (t.k + 3) / 4;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kS8, quads, kPasses);
  for (int pass = 0; pass < kPasses; ++pass) {
    const int column = pass * kVectors * 8;
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const int32_t* a = static_cast<const int32_t*>(t.a);
    __m256i c[kRows][kVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) c[r][j] = _mm256_setzero_si256();
    }
    kernel::k_loop(
        prefetch, quads, [&]() __attribute__((always_inline)) {
          // Even bytes of each dword (k 0, 2) sign-extended in place, then the odd ones (k 1, 3).
          __m256i w[kVectors];
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j)
            w[j] = _mm256_srai_epi16(_mm256_slli_epi16(load(weights + 8 * j), 8), 8);
#pragma GCC unroll 6
          for (int r = 0; r < kRows; ++r) {
            const __m256i x = _mm256_set1_epi32(a[r]);
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) add_pairs(c[r][j], x, w[j]);
          }
          asm("" : "+r"(weights));
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j) w[j] = _mm256_srai_epi16(load(weights + 8 * j), 8);
#pragma GCC unroll 6
          for (int r = 0; r < kRows; ++r) {
            const __m256i x = _mm256_set1_epi32(a[kRows + r]);
#pragma GCC unroll 4
            for (int j = 0; j < kVectors; ++j) add_pairs(c[r][j], x, w[j]);
          }
          a += 2 * kRows;
          weights += kPanelColumns;
        });
    int32_t* out = static_cast<int32_t*>(t.c) + column;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out + r * kPanelColumns + 8 * j), c[r][j]);
      }
    }
  }
}

using TileFunction = void (*)(const kernel::Tile&);
constexpr TileFunction kBf16Tiles[kMaxRows] = {tile_bf16<1>, tile_bf16<2>, tile_bf16<3>,
                                               tile_bf16<4>, tile_bf16<5>, tile_bf16<6>};
constexpr TileFunction kS8Tiles[kMaxRows] = {tile_s8<1>, tile_s8<2>, tile_s8<3>,
                                             tile_s8<4>, tile_s8<5>, tile_s8<6>};

void run_bf16(const kernel::Tile& t) {
  kBf16Tiles[t.rows - 1](t);
}
void run_s8(const kernel::Tile& t) {
  kS8Tiles[t.rows - 1](t);
}

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_6x32_avx2",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16AsFloat<Level>::bytes,
    .pack_rows = kernel::PackBf16AsFloat<Level>::pack,
    .tile = run_bf16,
};
constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_6x32_avx2",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsS16<Level>::bytes,
    .pack_rows = kernel::PackS8AsS16<Level>::pack,
    .tile = run_s8,
};

}  // namespace megamoe::isa_avx2
