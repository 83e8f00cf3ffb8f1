// bf16 tiles by vdpbf16ps: 12 rows x 32 columns. The instruction treats subnormal inputs and sums as zero.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 12;

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

template <int kRows>
void tile_bf16(const kernel::Tile& t) {
  const uint32_t* weights = static_cast<const uint32_t*>(t.panel);
  const int32_t* a = static_cast<const int32_t*>(t.a);
  __m512 c[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
  const int64_t pairs = (t.k + 1) / 2;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kBf16, pairs, 1);
  kernel::k_loop(
      prefetch, pairs, [&]() __attribute__((always_inline)) {
        const __m512i w0 = _mm512_load_si512(weights), w1 = _mm512_load_si512(weights + 16);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          const __m512i x = _mm512_set1_epi32(a[r]);
          dot(c[r][0], x, w0);
          dot(c[r][1], x, w1);
        }
        a += kRows;
        weights += kPanelColumns;
      });
  float* out = static_cast<float*>(t.c);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_ps(out + r * kPanelColumns, c[r][0]);
    _mm512_store_ps(out + r * kPanelColumns + 16, c[r][1]);
  }
}

using TileFunction = void (*)(const kernel::Tile&);
constexpr TileFunction kTiles[kMaxRows] = {tile_bf16<1>, tile_bf16<2>,  tile_bf16<3>,  tile_bf16<4>,
                                           tile_bf16<5>, tile_bf16<6>,  tile_bf16<7>,  tile_bf16<8>,
                                           tile_bf16<9>, tile_bf16<10>, tile_bf16<11>, tile_bf16<12>};
void run_bf16(const kernel::Tile& t) {
  kTiles[t.rows - 1](t);
}

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_12x32_avx512_bf16",
    .isa = Isa::kAvx512Bf16,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16Pairs<Level>::bytes,
    .pack_rows = kernel::PackBf16Pairs<Level>::pack,
    .tile = run_bf16,
};

}  // namespace megamoe::isa_avx512_bf16
