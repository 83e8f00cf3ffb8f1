// Kernel of E4M3 rows and E2M1 weights at the avx512_vnni level: digits of a row by vpdpbusd.
#include <immintrin.h>

#include "kernel/isa/avx2/e2m1_tile.h"
#include "kernel/isa/avx512/e2m1_lanes.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_vnni {
namespace {

struct Level;

struct Dot {
  static constexpr bool kStarts = true;
  static constexpr int vectors(int, int) { return 2; }
  static constexpr int chains(int digits, int rows) { return digits * rows == 1 ? 2 : 1; }
  [[gnu::always_inline]] static __m512i start(int32_t first) { return _mm512_set1_epi32(first); }
  [[gnu::always_inline]] static void add(__m512i& sum, __m512i weights, __m512i digits) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(digits));
  }
  [[gnu::always_inline]] static __m512i end(__m512i sum) { return sum; }
};

constexpr int kMaxRows = 4;

}  // namespace

constinit const kernel::Gemm e2m1_gemm_e4m3 =
    isa_avx2::e2m1_gemm<Level, isa_avx512::E2M1Lanes, Dot, isa_avx2::E2M1ValueRows<Level, 8, 6>, kMaxRows>(
        "e4m3_e2m1_4x32_avx512_vnni", Isa::kAvx512Vnni);

}  // namespace megamoe::isa_avx512_vnni
