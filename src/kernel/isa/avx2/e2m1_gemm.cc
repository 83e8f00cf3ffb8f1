// Kernels of E2M1 weights at the avx2 level, by vpdpbusd where the CPU has AVX-VNNI: for rows of small
// integers, which E2M1 codes are, and for rows of E4M3 values.
#include <immintrin.h>

#include "base/cpu.h"
#include "kernel/isa/avx2/e2m1_lanes.h"
#include "kernel/isa/avx2/e2m1_tile.h"
#include "kernel/isa/avx2/vnni.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx2 {
namespace {

struct Level;

struct Vnni {
  static constexpr bool kStarts = true;
  static constexpr int vectors(int digits, int rows) { return digits * rows <= 2 ? 4 : 2; }
  static constexpr int chains(int digits, int rows) { return digits * rows == 1 ? 2 : 1; }
  [[gnu::always_inline]] static __m256i start(int32_t first) { return _mm256_set1_epi32(first); }
  [[gnu::always_inline]] static void add(__m256i& sum, __m256i weights, __m256i digits) {
    dot(sum, weights, digits);
  }
  [[gnu::always_inline]] static __m256i end(__m256i sum) { return sum; }
};

// Not constexpr: g++ would make it in a register that it does not have.
alignas(32) constinit const uint32_t kOnes[8] = {0x10001, 0x10001, 0x10001, 0x10001,
                                                 0x10001, 0x10001, 0x10001, 0x10001};

/// Sums of pairs in 16 bits: 16 products of a group of at most 24 * 64, or of 24 * 12.
struct Pairs {
  static constexpr bool kStarts = false;
  static constexpr int vectors(int digits, int rows) { return digits * rows <= 2 ? 4 : 2; }
  static constexpr int chains(int, int) { return 1; }
  [[gnu::always_inline]] static __m256i start(int32_t) { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static void add(__m256i& sum, __m256i weights, __m256i digits) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(_mm256_maddubs_epi16(weights, digits)));
  }
  [[gnu::always_inline]] static __m256i end(__m256i sum) {
    asm("vpmaddwd %1, %0, %0" : "+x"(sum) : "m"(kOnes));
    return sum;
  }
};

constexpr int kMaxRows = 4, kMaxVnniRows = 6, kMaxVnniDigitRows = 3, kMaxDigitRows = 2;

template <class Dot, class Rows, int kRows>
constexpr kernel::Gemm gemm(const char* name, uint32_t features = 0) {
  return e2m1_gemm<Level, E2M1Lanes, Dot, Rows, kRows>(name, Isa::kAvx2, features);
}

}  // namespace

constinit const kernel::Gemm e2m1_gemm_s8 =
    gemm<Pairs, E2M1IntegerRows<Level>, kMaxRows>("s8_e2m1_4x32_avx2");
constinit const kernel::Gemm e2m1_gemm_e4m3 =
    gemm<Pairs, E2M1ValueRows<Level, 7, 4>, kMaxDigitRows>("e4m3_e2m1_2x32_avx2");
constinit const kernel::Gemm e2m1_gemm_s8_vnni =
    gemm<Vnni, E2M1IntegerRows<Level>, kMaxVnniRows>("s8_e2m1_6x32_avx2_vnni", base::kCpuAvxVnni);
constinit const kernel::Gemm e2m1_gemm_e4m3_vnni =
    gemm<Vnni, E2M1ValueRows<Level, 8, 6>, kMaxVnniDigitRows>("e4m3_e2m1_3x32_avx2_vnni", base::kCpuAvxVnni);

}  // namespace megamoe::isa_avx2
