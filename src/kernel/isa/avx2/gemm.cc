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
constexpr int kPasses = 2;
constexpr int kColumnsAtOnce = kPanelColumns / kPasses;

__m256i load(const uint32_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

template <int kRows>
void tile_bf16(const kernel::Tile& t) {
  const int64_t pairs = (t.k + 1) / 2;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::panel_bytes(kernel::Family::kBf16, t.k), pairs * kPasses);
  for (int column = 0; column < kPanelColumns; column += kColumnsAtOnce) {
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const float* a = static_cast<const float*>(t.a);
    __m256 c[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm256_setzero_ps();
    const auto add_products = [&](__m256 w0, __m256 w1) __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256 x = _mm256_broadcast_ss(a + r);
        c[r][0] = _mm256_fmadd_ps(x, w0, c[r][0]);
        c[r][1] = _mm256_fmadd_ps(x, w1, c[r][1]);
      }
      a += kRows;
    };
    kernel::k_loop(
        prefetch, pairs, [&]() __attribute__((always_inline)) {
          add_products(_mm256_castsi256_ps(_mm256_slli_epi32(load(weights), 16)),
                       _mm256_castsi256_ps(_mm256_slli_epi32(load(weights + 8), 16)));
          const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
          add_products(_mm256_castsi256_ps(_mm256_and_si256(high, load(weights))),
                       _mm256_castsi256_ps(_mm256_and_si256(high, load(weights + 8))));
          weights += kPanelColumns;
        });
    float* out = static_cast<float*>(t.c) + column;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      _mm256_store_ps(out + r * kPanelColumns, c[r][0]);
      _mm256_store_ps(out + r * kPanelColumns + 8, c[r][1]);
    }
  }
}

template <int kRows>
void tile_s8(const kernel::Tile& t) {
  const int64_t quads = (t.k + 3) / 4;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::panel_bytes(kernel::Family::kS8, t.k), quads * kPasses);
  for (int column = 0; column < kPanelColumns; column += kColumnsAtOnce) {
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const int32_t* a = static_cast<const int32_t*>(t.a);
    __m256i c[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm256_setzero_si256();
    // Pairs of s16: a product pair is at most 2 * 2^14, so nothing saturates, also for -128.
    const auto add_products = [&](__m256i w0, __m256i w1) __attribute__((always_inline)) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m256i x = _mm256_set1_epi32(a[r]);
        c[r][0] = _mm256_add_epi32(c[r][0], _mm256_madd_epi16(x, w0));
        c[r][1] = _mm256_add_epi32(c[r][1], _mm256_madd_epi16(x, w1));
      }
      a += kRows;
    };
    kernel::k_loop(
        prefetch, quads, [&]() __attribute__((always_inline)) {
          // Even bytes of each dword (k 0, 2) sign-extended in place, then the odd ones (k 1, 3).
          add_products(_mm256_srai_epi16(_mm256_slli_epi16(load(weights), 8), 8),
                       _mm256_srai_epi16(_mm256_slli_epi16(load(weights + 8), 8), 8));
          add_products(_mm256_srai_epi16(load(weights), 8), _mm256_srai_epi16(load(weights + 8), 8));
          weights += kPanelColumns;
        });
    int32_t* out = static_cast<int32_t*>(t.c) + column;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + r * kPanelColumns), c[r][0]);
      _mm256_store_si256(reinterpret_cast<__m256i*>(out + r * kPanelColumns + 8), c[r][1]);
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
