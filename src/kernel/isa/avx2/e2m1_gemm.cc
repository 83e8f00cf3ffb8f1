// Kernels of E2M1 weights at the avx2 level, by vpdpbusd where the CPU has AVX-VNNI: for rows of small
// integers, which E2M1 codes are, and for rows of E4M3 values.
#include <immintrin.h>

#include "base/cpu.h"
#include "kernel/isa/avx2/e2m1_tile.h"
#include "kernel/isa/avx2/vnni.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx2 {
namespace {

struct Level;

struct Vnni {
  static constexpr bool kStarts = true;
  static constexpr int vectors(int digits, int rows) {
    return digits == 1 ? (rows <= 2 ? 4 : 2) : (rows <= 2 ? 2 : 1);
  }
  static constexpr int chains(int rows) { return rows == 1 ? 2 : 1; }
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
  static constexpr int vectors(int digits, int rows) {
    return digits == 1 ? (rows <= 2 ? 4 : 2) : (rows == 1 ? 2 : 1);
  }
  static constexpr int chains(int) { return 1; }
  [[gnu::always_inline]] static __m256i start(int32_t) { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static void add(__m256i& sum, __m256i weights, __m256i digits) {
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(_mm256_maddubs_epi16(weights, digits)));
  }
  [[gnu::always_inline]] static __m256i end(__m256i sum) {
    asm("vpmaddwd %1, %0, %0" : "+x"(sum) : "m"(kOnes));
    return sum;
  }
};

constexpr int kMaxRows = 4, kMaxVnniRows = 6;

/// Digits are 1 with the s8 family, 3 with E4M3 values as bf16.
template <class Dot, int kDigits, int kRows>
constexpr kernel::Gemm e2m1_gemm(const char* name, uint32_t features) {
  kernel::Gemm gemm{};
  gemm.name = name;
  gemm.isa = Isa::kAvx2;
  gemm.family = kDigits == 1 ? kernel::Family::kS8 : kernel::Family::kBf16;
  gemm.max_rows = kRows;
  gemm.packed_bytes = E2M1Rows<kDigits>::bytes;
  gemm.pack_rows = E2M1Rows<kDigits>::pack;
  gemm.coded_rows[static_cast<int>(kernel::WeightCode::kE2M1)] = kRows;
  gemm.coded_tile[static_cast<int>(kernel::WeightCode::kE2M1)] = E2M1Tiles<Level, Dot, kDigits, kRows>::run;
  gemm.features = features;
  return gemm;
}

}  // namespace

constinit const kernel::Gemm e2m1_gemm_s8 = e2m1_gemm<Pairs, 1, kMaxRows>("s8_e2m1_4x32_avx2", 0);
constinit const kernel::Gemm e2m1_gemm_e4m3 = e2m1_gemm<Pairs, 3, kMaxRows>("e4m3_e2m1_4x32_avx2", 0);
constinit const kernel::Gemm e2m1_gemm_s8_vnni =
    e2m1_gemm<Vnni, 1, kMaxVnniRows>("s8_e2m1_6x32_avx2_vnni", base::kCpuAvxVnni);
constinit const kernel::Gemm e2m1_gemm_e4m3_vnni =
    e2m1_gemm<Vnni, 3, kMaxRows>("e4m3_e2m1_4x32_avx2_vnni", base::kCpuAvxVnni);

}  // namespace megamoe::isa_avx2
