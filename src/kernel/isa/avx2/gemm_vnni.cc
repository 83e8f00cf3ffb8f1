// s8 tiles of the avx2 level where the CPU has AVX-VNNI: 6 rows x 16 columns at a time by vpdpbusd.
// Activations are u8 = code + 128; the accumulators start from -128 * column sum, which takes the offset
// back.
#include <immintrin.h>

#include "base/cpu.h"
#include "kernel/contract.h"
#include "kernel/isa/avx2/int4_tile.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/isa/avx2/rows.h"
#include "kernel/isa/avx2/vnni.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx2 {
namespace {

using kernel::kPanelColumns;
struct VnniLevel;

constexpr int kMaxRows = 6;     // 12 accumulators, 2 vectors of weights, 1 activation: 15 registers
constexpr int kStreamRows = 2;  // which take all columns of a panel at once

// Not constexpr: g++ would make it in a register that it does not have.
alignas(32) constinit uint32_t upper_nibbles[8] = {0xf0f0f0f0, 0xf0f0f0f0, 0xf0f0f0f0, 0xf0f0f0f0,
                                                   0xf0f0f0f0, 0xf0f0f0f0, 0xf0f0f0f0, 0xf0f0f0f0};

[[gnu::always_inline]] inline __m256i upper_nibbles_of(__m256i codes) {
  asm("vpand %1, %0, %0" : "+x"(codes) : "m"(upper_nibbles));
  return codes;
}

template <int kRows>
struct VnniSums {
  using Operand = int32_t;
  static constexpr int kVectors = kRows <= kStreamRows ? 4 : 2;
  static constexpr int kColumns = kVectors * 8;
  static constexpr int kOperands = 1;
  static constexpr int kRowCount = kRows;
  __m256i c[kRows][kVectors];

  [[gnu::always_inline]] void start(const kernel::Tile& t, int column) { start_from<7>(t, column); }
  [[gnu::always_inline]] void load(const void* from) { load_rows(c, from); }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    __m256i w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) w[j] = load_dwords(weights + 8 * j);
    add(w, a);
  }
  [[gnu::always_inline]] void store(void* to) const {
    store_rows(c, to);
  }

  // A nibble in the upper half of a byte is the signed code times 16: sums are too, and stay in 32 bits up to
  // the longest reduction of int8.
  [[gnu::always_inline]] void start_codes(const kernel::Tile& t, int column) {
    start_from<7 + 4>(t, column);
  }
  [[gnu::always_inline]] void step_codes(const uint32_t* codes, const Operand* a) {
    step_last_codes(codes, a);
    wait(codes);
    __m256i w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) w[j] = upper_nibbles_of(load_dwords(codes + 8 * j));
    add(w, a + kRows);
  }
  [[gnu::always_inline]] void step_last_codes(const uint32_t* codes, const Operand* a) {
    wait(codes);
    __m256i w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      w[j] = upper_nibbles_of(_mm256_slli_epi16(load_dwords(codes + 8 * j), 4));
    add(w, a);
  }
  [[gnu::always_inline]] void end_codes() {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) c[r][j] = _mm256_srai_epi32(c[r][j], 4);
    }
  }

 private:
  /// Nothing is loaded from `codes` before the products that came first: there are no registers to keep it
  /// in.
  [[gnu::always_inline]] void wait(const uint32_t*& codes) {
    asm("" : "+r"(codes), "+x"(c[kRows - 1][kVectors - 1]));
  }
  template <int kShift>
  [[gnu::always_inline]] void start_from(const kernel::Tile& t, int column) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const __m256i sums =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(t.column_sums + column + 8 * j));
      c[0][j] = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(sums, kShift));
#pragma GCC unroll 6
      for (int r = 1; r < kRows; ++r) c[r][j] = c[0][j];
    }
  }
  [[gnu::always_inline]] void add(const __m256i (&w)[kVectors], const Operand* a) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256i x = _mm256_set1_epi32(a[r]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) dot(c[r][j], x, w[j]);
    }
  }
};

}  // namespace

constinit const kernel::Gemm gemm_s8_vnni = {
    .name = "s8_s32_6x32_avx2_vnni",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsU8<VnniLevel>::bytes,
    .pack_rows = kernel::PackS8AsU8<VnniLevel>::pack,
    .tile = kernel::TileFunctions<VnniLevel, kernel::Family::kS8, VnniSums, kMaxRows, kStreamRows>::run,
    .coded_rows = {0, 0, 0, 0, kMaxRows},
    .coded_tile = {nullptr, nullptr, nullptr, nullptr, Int4Tiles<VnniLevel, VnniSums, kMaxRows>::run},
    .stream = {{6 << 10, 3 << 10, kStreamRows}},
    .features = base::kCpuAvxVnni,
};

}  // namespace megamoe::isa_avx2
