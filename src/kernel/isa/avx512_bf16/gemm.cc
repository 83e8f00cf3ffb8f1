// bf16 tiles by vdpbf16ps: 12 rows x 32 columns. The instruction treats subnormal inputs and sums as zero.
#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx512_bf16/coded_tile.h"
#include "kernel/isa/avx512_bf16/decode.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 12;
constexpr int kPairedRows = 4;
constexpr int kByteRows = 6;  // straight from codes of a byte: more do not leave registers for the tables

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512& sum, __m512i a, __m512i b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

template <int kRows>
struct Bf16Sums {
  using Operand = int32_t;
  static constexpr int kColumns = kPanelColumns;
  static constexpr int kOperands = 1;
  static constexpr int kRowCount = kRows;
  __m512 c[kRows][2];

  [[gnu::always_inline]] void start(const kernel::Tile&, int) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
  }
  [[gnu::always_inline]] void load(const void* from) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      c[r][0] = _mm512_load_ps(static_cast<const float*>(from) + r * kPanelColumns);
      c[r][1] = _mm512_load_ps(static_cast<const float*>(from) + r * kPanelColumns + 16);
    }
  }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    add(_mm512_load_si512(weights), _mm512_load_si512(weights + 16), a);
  }
  [[gnu::always_inline]] void add(__m512i w0, __m512i w1, const Operand* a) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = _mm512_set1_epi32(a[r]);
      dot(c[r][0], x, w0);
      dot(c[r][1], x, w1);
    }
  }
  [[gnu::always_inline]] void store(void* to) const {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      _mm512_store_ps(static_cast<float*>(to) + r * kPanelColumns, c[r][0]);
      _mm512_store_ps(static_cast<float*>(to) + r * kPanelColumns + 16, c[r][1]);
    }
  }
};

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_12x32_avx512_bf16",
    .isa = Isa::kAvx512Bf16,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16Pairs<Level>::bytes,
    .pack_rows = kernel::PackBf16Pairs<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kBf16, Bf16Sums, kMaxRows>::run,
    .decode = {nullptr, decode_mx<E4M3Codes>, decode_mx<E5M2Codes>, decode_mx<E2M1Codes>},
    .coded_rows = {0, kByteRows, kByteRows, kMaxRows},
    .paired_rows = {0, kPairedRows, kPairedRows, kPairedRows},
    .coded_tile = {nullptr, CodedTiles<Level, E4M3Codes, Bf16Sums, kByteRows, kPairedRows>::run,
                   CodedTiles<Level, E5M2Codes, Bf16Sums, kByteRows, kPairedRows>::run,
                   CodedTiles<Level, E2M1Codes, Bf16Sums, kMaxRows, kPairedRows>::run},
};

}  // namespace megamoe::isa_avx512_bf16
