// Kernel of E2M1 rows and weights at the avx512 level: products of bytes in pairs, whose sums stay in 16
// bits.
#include <immintrin.h>

#include "kernel/isa/avx2/e2m1_tile.h"
#include "kernel/isa/avx512/e2m1_lanes.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {
namespace {

struct Level;

/// 16 products of a group of at most 24 * 12 are added in 16 bits.
struct Pairs {
  static constexpr bool kStarts = false;
  static constexpr int vectors(int, int) { return 2; }
  static constexpr int chains(int, int) { return 1; }
  [[gnu::always_inline]] static __m512i start(int32_t) { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static void add(__m512i& sum, __m512i weights, __m512i digits) {
    asm("vpaddw %1, %0, %0" : "+v"(sum) : "v"(_mm512_maddubs_epi16(weights, digits)));
  }
  [[gnu::always_inline]] static __m512i end(__m512i sum) {
    return _mm512_madd_epi16(sum, _mm512_set1_epi16(1));
  }
};

constexpr int kMaxRows = 12;

}  // namespace

constinit const kernel::Gemm e2m1_gemm_s8 =
    isa_avx2::e2m1_gemm<Level, E2M1Lanes, Pairs, isa_avx2::E2M1IntegerRows<Level>, kMaxRows>(
        "s8_e2m1_12x32_avx512", Isa::kAvx512);

}  // namespace megamoe::isa_avx512
