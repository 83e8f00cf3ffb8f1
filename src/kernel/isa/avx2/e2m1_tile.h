// Products with panels of E2M1 codes straight from the codes: the sum of a group of 32 is an integer, and one
// fused multiply-add adds it to those of the groups before.
//
// Weights are u8 operands, 2 x value + 12. Activations are s8 digits of base 128: one of a code that is a
// small integer, three of an E4M3 value times 512. What the 12 adds to the sum of a group depends on the
// activations alone and is taken from the start.
//
// Lanes is what a level has of vectors of columns: Vector, Floats, kLanes, kTable (from a code to its
// operand), table, weights, zero, splat, add, shift_left, to_float, splat_float, product, fma, scale, load
// and store. Dot is how it multiplies: see E2M1Sums.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernel/by_rows.h"
#include "kernel/contract.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/k_loop.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx2 {

inline constexpr int kE2M1Offset = 12;
inline constexpr int64_t kE2M1Dwords = kernel::kMxGroup / 4;  ///< of k in a group
inline constexpr int64_t kE2M1GroupBytes = kernel::kPanelColumns * (1 + kernel::kMxGroup / 2);

/// A packed tile: for each group the digits as [8][kDigits][rows] dwords, then for each row the start of the
/// sums and what brings them to their value: half the factor of the row, and of E4M3 a 512th of that.
template <class Level, int kDigits>
struct E2M1Rows {
  static int64_t stride(int rows) { return (kE2M1Dwords * kDigits + 2) * rows; }
  static size_t bytes(int rows, int64_t k) {
    return kernel::round_to_cache_line(
        static_cast<size_t>(kernel::groups_of(k, kernel::kMxGroup) * stride(rows)) * sizeof(int32_t));
  }

  static void pack(const kernel::PackRows& p) {
    constexpr size_t kCodeBytes = kDigits == 1 ? 1 : 2;
    const auto* codes = static_cast<const std::byte*>(p.codes);
    const auto* scales = reinterpret_cast<const std::byte*>(p.scales);
    for (int r = 0; r < p.rows; ++r, codes += p.row_bytes, scales += p.scale_bytes) {
      auto* out = static_cast<int32_t*>(p.out);
      for (int64_t k = 0; k < p.k; k += kernel::kMxGroup, out += stride(p.rows)) {
        alignas(32) std::byte group[kernel::kMxGroup * kCodeBytes] = {};
        const auto count = static_cast<size_t>(std::min<int64_t>(kernel::kMxGroup, p.k - k));
        std::memcpy(group, codes + static_cast<size_t>(k) * kCodeBytes, count * kCodeBytes);
        float factor = 1;
        if (p.scales != nullptr) {
          std::memcpy(&factor, scales + k / kernel::kMxGroup * static_cast<int64_t>(sizeof factor),
                      sizeof factor);
        }
        pack_group(group, factor, p.rows, r, out);
      }
    }
  }

 private:
  static void pack_group(const std::byte* group, float factor, int rows, int r, int32_t* out) {
    alignas(32) int32_t digits[kDigits][kE2M1Dwords];
    int32_t sum;
    if constexpr (kDigits == 1) {
      const __m256i codes = load_dwords(group);
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
      sum = sum_of(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      _mm256_store_si256(reinterpret_cast<__m256i*>(digits[0]), codes);
    } else {
      sum = split(group, factor, digits);
    }
    for (int64_t d = 0; d < kE2M1Dwords; ++d) {
      for (int i = 0; i < kDigits; ++i) out[(d * kDigits + i) * rows + r] = digits[i][d];
    }
    int32_t* const extra = out + kE2M1Dwords * kDigits * rows;
    extra[r] = -kE2M1Offset * sum;
    extra[rows + r] = std::bit_cast<int32_t>(0.5f * factor);
  }

  /// Three digits of each value times 512, the lowest first; returns the sum of all. A NaN goes to the
  /// factor.
  static int32_t split(const std::byte* values, float& factor, int32_t (&digits)[kDigits][kE2M1Dwords]) {
    const __m256i middle = _mm256_set1_epi32(64), low_bits = _mm256_set1_epi32(127);
    __m256i split[3][4], sum = _mm256_setzero_si256();
    __m256 nan = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      const __m128i halves = _mm_load_si128(reinterpret_cast<const __m128i*>(values) + i);
      const __m256 value = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      __m256i rest = _mm256_cvtps_epi32(_mm256_mul_ps(value, _mm256_set1_ps(512.0f)));
      sum = _mm256_add_epi32(sum, rest);
      for (int j = 0; j < 2; ++j) {
        rest = _mm256_add_epi32(rest, middle);
        split[j][i] = _mm256_sub_epi32(_mm256_and_si256(rest, low_bits), middle);
        rest = _mm256_srai_epi32(rest, 7);
      }
      split[2][i] = rest;
    }
    for (int j = 0; j < 3; ++j) {
      const __m256i words0 = _mm256_packs_epi32(split[j][0], split[j][1]);
      const __m256i words1 = _mm256_packs_epi32(split[j][2], split[j][3]);
      const __m256i bytes = _mm256_packs_epi16(words0, words1);  // dwords 0 2 4 6 1 3 5 7
      _mm256_store_si256(reinterpret_cast<__m256i*>(digits[j]),
                         _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
    if (_mm256_movemask_ps(nan) != 0) {
      factor = std::bit_cast<float>(0x7fc00000);
      return 0;  // the digits of a NaN are no number
    }
    factor *= 0x1p-9f;
    return sum_of(sum);
  }

  static int32_t sum_of(__m256i x) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
  }
};

/// The sums of one group for some columns. Dot has start(first value), add(sum, u8, s8) and end(sum); kStarts
/// where end() has the first value in it. With two chains the low and the high nibbles have sums of their
/// own.
template <class Lanes, class Dot, int kDigits, int kRows, int kVectors, int kChains>
struct E2M1Sums {
  using Vector = typename Lanes::Vector;
  Vector x[kChains][kDigits][kRows][kVectors];

  [[gnu::always_inline]] void start(const int32_t* starts) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Vector start = Dot::start(starts[r]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
#pragma GCC unroll 12
        for (int i = 0; i < kDigits * kChains; ++i)
          x[i / kDigits][i % kDigits][r][j] = i == 0 ? start : Lanes::zero();
      }
    }
  }
  template <int kHigh>
  [[gnu::always_inline]] void add(const uint32_t* codes, Vector values, const int32_t* a) {
    auto& sums = x[kHigh * (kChains - 1)];
    // Not before the products that came first: there are no registers for more.
    asm("" : "+r"(codes), "+v"(sums[kDigits - 1][kRows - 1][kVectors - 1]));
    Vector w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      w[j] = Lanes::template weights<4 * kHigh>(codes + Lanes::kLanes * j, values);
#pragma GCC unroll 3
    for (int i = 0; i < kDigits; ++i) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vector digits = Lanes::splat(a[i * kRows + r]);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) Dot::add(sums[i][r][j], w[j], digits);
      }
    }
  }
  /// C += scale * fl(sum * factor)
  [[gnu::always_inline]] void scale(const int32_t* starts, const float* factors, const uint8_t* scales,
                                    float* c) {
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const auto scale = Lanes::scale(scales + Lanes::kLanes * j);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        Vector sum = digit(kDigits - 1, r, j);
#pragma GCC unroll 2
        for (int i = kDigits - 2; i >= 0; --i)
          sum = Lanes::add(Lanes::template shift_left<7>(sum), digit(i, r, j));
        if constexpr (!Dot::kStarts) sum = Lanes::add(sum, Lanes::splat(starts[r]));
        const auto value = Lanes::product(Lanes::to_float(sum), Lanes::splat_float(factors[r]));
        float* const at = c + r * kernel::kPanelColumns + Lanes::kLanes * j;
        Lanes::store(at, Lanes::fma(value, scale, Lanes::load(at)));
      }
      asm volatile("" : : : "memory");  // C stays in memory, and the next scales wait
    }
  }

 private:
  [[gnu::always_inline]] Vector digit(int i, int r, int j) const {
    Vector sum = Dot::end(x[0][i][r][j]);
    if constexpr (kChains == 2) sum = Lanes::add(sum, Dot::end(x[1][i][r][j]));
    return sum;
  }
};

template <class Level, class Lanes, class Dot, int kDigits, int kRows>
void tile_e2m1(const kernel::Tile& t) {
  constexpr int kVectors = Dot::vectors(kDigits, kRows);
  constexpr int kColumns = Lanes::kLanes * kVectors;
  constexpr int64_t kStep = int64_t{kDigits} * kRows;
  const auto values = Lanes::table(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const int64_t groups = kernel::groups_of(t.k, kernel::kMxGroup);
  kernel::SpreadPrefetch<Level> prefetch(t, groups * (kE2M1Dwords / 2) * kernel::kPrefetchStride,
                                         kernel::kPanelColumns / kColumns);
  for (int column = 0; column < kernel::kPanelColumns; column += kColumns) {
    auto* const c = static_cast<float*>(t.c) + column;
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j)
        Lanes::store(c + r * kernel::kPanelColumns + Lanes::kLanes * j, Lanes::splat_float(0));
    }
    const auto* header = static_cast<const uint8_t*>(t.panel);
    const auto* a = static_cast<const int32_t*>(t.a);
    for (int64_t g = 0; g < groups; ++g, header += kE2M1GroupBytes) {
      const int32_t* const starts = a + kE2M1Dwords * kStep;
      E2M1Sums<Lanes, Dot, kDigits, kRows, kVectors, Dot::chains(kRows)> sums;
      sums.start(starts);
      const auto* codes = reinterpret_cast<const uint32_t*>(header + kernel::kPanelColumns) + column;
#pragma GCC unroll 4
      for (int i = 0; i < kE2M1Dwords / 2; ++i) {
        prefetch.step();
        sums.template add<0>(codes, values, a);
        sums.template add<1>(codes, values, a + kStep);
        codes += kernel::kPanelColumns;
        a += 2 * kStep;
      }
      sums.scale(starts, reinterpret_cast<const float*>(starts + kRows), header + column, c);
      a = starts + 2 * kRows;
    }
  }
}

/// The functions for 1 .. kMaxRows rows.
template <class Level, class Lanes, class Dot, int kDigits, int kMaxRows>
struct E2M1Tiles {
  static void run(const kernel::Tile& t) { kByRows[static_cast<size_t>(t.rows - 1)](t); }

 private:
  static constexpr auto kByRows = kernel::functions_by_rows<kMaxRows>(
      []<int kRows>() { return &tile_e2m1<Level, Lanes, Dot, kDigits, kRows>; });
};

/// The kernel: digits are 1 with the s8 family, 3 with E4M3 values as bf16.
template <class Level, class Lanes, class Dot, int kDigits, int kMaxRows>
constexpr kernel::Gemm e2m1_gemm(const char* name, Isa isa, uint32_t features = 0) {
  kernel::Gemm gemm{};
  gemm.name = name;
  gemm.isa = isa;
  gemm.family = kDigits == 1 ? kernel::Family::kS8 : kernel::Family::kBf16;
  gemm.max_rows = kMaxRows;
  gemm.packed_bytes = E2M1Rows<Level, kDigits>::bytes;
  gemm.pack_rows = E2M1Rows<Level, kDigits>::pack;
  gemm.coded_rows[static_cast<int>(kernel::WeightCode::kE2M1)] = kMaxRows;
  gemm.coded_tile[static_cast<int>(kernel::WeightCode::kE2M1)] =
      E2M1Tiles<Level, Lanes, Dot, kDigits, kMaxRows>::run;
  gemm.features = features;
  return gemm;
}

}  // namespace megamoe::isa_avx2
