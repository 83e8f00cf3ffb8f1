// s8 tiles by vpdpbusd: 12 rows x 32 columns. Activations are u8 = code + 128; the accumulators start from
// -128 * column sum, which takes the offset back.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx512_vnni {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 12;

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512i& sum, __m512i unsigned_codes, __m512i signed_codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_codes), "v"(signed_codes));
}

template <int kRows>
void tile_s8(const kernel::Tile& t) {
  const uint32_t* weights = static_cast<const uint32_t*>(t.panel);
  const int32_t* a = static_cast<const int32_t*>(t.a);
  const __m512i start0 =
      _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_loadu_si512(t.column_sums), 7));
  const __m512i start1 =
      _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_loadu_si512(t.column_sums + 16), 7));
  __m512i c[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    c[r][0] = start0;
    c[r][1] = start1;
  }
  const int64_t quads = (t.k + 3) / 4;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kS8, quads, 1);
  kernel::k_loop(
      prefetch, quads, [&]() __attribute__((always_inline)) {
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
  int32_t* out = static_cast<int32_t*>(t.c);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_si512(out + r * kPanelColumns, c[r][0]);
    _mm512_store_si512(out + r * kPanelColumns + 16, c[r][1]);
  }
}

using TileFunction = void (*)(const kernel::Tile&);
constexpr TileFunction kTiles[kMaxRows] = {tile_s8<1>, tile_s8<2>,  tile_s8<3>,  tile_s8<4>,
                                           tile_s8<5>, tile_s8<6>,  tile_s8<7>,  tile_s8<8>,
                                           tile_s8<9>, tile_s8<10>, tile_s8<11>, tile_s8<12>};
void run_s8(const kernel::Tile& t) {
  kTiles[t.rows - 1](t);
}

}  // namespace

constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_12x32_avx512_vnni",
    .isa = Isa::kAvx512Vnni,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsU8<Level>::bytes,
    .pack_rows = kernel::PackS8AsU8<Level>::pack,
    .tile = run_s8,
};

}  // namespace megamoe::isa_avx512_vnni
