// s8 tiles by vpdpbusd: 14 rows x 32 columns. Activations are u8 = code + 128; the accumulators start from
// -128 * column sum, which takes the offset back.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx512/rows.h"
#include "kernel/isa/avx512_vnni/decode.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx512_vnni {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 14;

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512i& sum, __m512i unsigned_codes, __m512i signed_codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_codes), "v"(signed_codes));
}

template <int kRows>
struct S8Sums {
  using Operand = int32_t;
  static constexpr int kColumns = kPanelColumns;
  static constexpr int kOperands = 1;
  static constexpr int kRowCount = kRows;
  __m512i c[kRows][2];

  [[gnu::always_inline]] void start(const kernel::Tile& t, int) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i start0 = _mm512_sub_epi32(zero, _mm512_slli_epi32(_mm512_loadu_si512(t.column_sums), 7));
    const __m512i start1 =
        _mm512_sub_epi32(zero, _mm512_slli_epi32(_mm512_loadu_si512(t.column_sums + 16), 7));
#pragma GCC unroll 14
    for (int r = 0; r < kRows; ++r) {
      c[r][0] = start0;
      c[r][1] = start1;
    }
  }
  [[gnu::always_inline]] void load(const void* from) {
    isa_avx512::load_rows(c, from);
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
  [[gnu::always_inline]] void store(void* to) const {
    isa_avx512::store_rows(c, to);
  }
};

}  // namespace

constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_14x32_avx512_vnni",
    .isa = Isa::kAvx512Vnni,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsU8<Level>::bytes,
    .pack_rows = kernel::PackS8AsU8<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kS8, S8Sums, kMaxRows, kMaxRows>::run,
    .decode = {nullptr, nullptr, nullptr, nullptr, decode_int4},
    .coded_rows = {0, 0, 0, 0, kMaxRows},
    .coded_tile = {nullptr, nullptr, nullptr, nullptr, Int4Tiles<Level, S8Sums, kMaxRows>::run},
    .stream = {{6 << 10, 3 << 10}, {}, {}, {}, {8 << 10, 0}},
};

}  // namespace megamoe::isa_avx512_vnni
