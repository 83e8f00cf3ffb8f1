// Rows for e2m1_tile.h: digits of activations, what the sums of a group start from, and what brings them to
// their value.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernel/contract.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx2 {

inline constexpr int kE2M1Offset = 12;
inline constexpr int64_t kE2M1Dwords = kernel::kMxGroup / 4;  ///< of k in a group
inline constexpr int kE2M1MostRows = 12;                      ///< of a tile

inline int32_t sum_of_dwords(__m256i x) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

/// Codes that are small integers, a digit each. A group: [8][rows] dwords, [rows] starts, [rows] halves of
/// the factors.
template <class Level>
struct E2M1IntegerRows {
  static constexpr auto kFamily = kernel::Family::kS8;
  static constexpr int kDigits = 1, kBits = 0;
  static int64_t stride(int rows) { return (kE2M1Dwords + 2) * rows; }

  static void pack_group(const kernel::PackRows& p, int64_t k, int64_t count, int32_t* out) {
    const auto* row = static_cast<const std::byte*>(p.codes) + k;
    for (int r = 0; r < p.rows; ++r, row += p.row_bytes) {
      alignas(32) int32_t digits[kE2M1Dwords] = {};
      std::memcpy(digits, row, static_cast<size_t>(count));
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_dwords(digits));
      for (int64_t d = 0; d < kE2M1Dwords; ++d) out[d * p.rows + r] = digits[d];
      int32_t* const extra = out + kE2M1Dwords * p.rows;
      extra[r] = -kE2M1Offset * sum_of_dwords(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
      extra[p.rows + r] = std::bit_cast<int32_t>(0.5f * group_factor(p, r, k));
    }
  }

  static float group_factor(const kernel::PackRows& p, int row, int64_t k) {
    if (p.scales == nullptr) return 1;
    const auto* const scales = reinterpret_cast<const std::byte*>(p.scales) + row * p.scale_bytes;
    return reinterpret_cast<const float*>(scales)[k / kernel::kMxGroup];
  }
};

/// E4M3 values as bfloat16. They are multiples of 2^-9 up to 448: three digits of base 2^kBits. Where all of
/// a group are multiples of 2^-kFine, as mostly where the largest one is near 448, two. The value of a sum is
/// the same to the last bit. A group: [8][2][rows] dwords of digits, the lower ones first, [rows] starts,
/// [rows] halves of the factors of the lowest digit; then whether there is a third digit below them, its
/// [rows] starts and [8][rows] dwords.
template <class Level, int kBitsOfDigit, int kFine>
struct E2M1ValueRows {
  static constexpr auto kFamily = kernel::Family::kBf16;
  static constexpr int kDigits = 2, kBits = kBitsOfDigit;
  static int64_t stride(int rows) { return (3 * kE2M1Dwords + 3) * rows + 1; }

  static void pack_group(const kernel::PackRows& p, int64_t k, int64_t count, int32_t* out) {
    __m256i units[kE2M1MostRows][4];  // multiples of 2^-9
    bool is_nan[kE2M1MostRows];
    __m256i all = _mm256_setzero_si256();
    const auto* row = static_cast<const std::byte*>(p.codes) + 2 * k;
    for (int r = 0; r < p.rows; ++r, row += p.row_bytes) {
      alignas(32) uint16_t values[kernel::kMxGroup] = {};
      std::memcpy(values, row, static_cast<size_t>(count) * sizeof values[0]);
      is_nan[r] = to_units(values, units[r]);
      for (int i = 0; i < 4; ++i) all = _mm256_or_si256(all, units[r][i]);
    }
    const bool third = !_mm256_testz_si256(all, _mm256_set1_epi32((1 << (9 - kFine)) - 1));
    int32_t* const starts = out + kDigits * kE2M1Dwords * p.rows;
    int32_t* const lowest = starts + 2 * p.rows;
    *lowest = third;
    for (int r = 0; r < p.rows; ++r) {
      __m256i sum = _mm256_setzero_si256();
      for (__m256i& of : units[r]) {
        if (!third) of = _mm256_srai_epi32(of, 9 - kFine);
        sum = _mm256_add_epi32(sum, of);
      }
      const int32_t start = -kE2M1Offset * sum_of_dwords(sum);
      starts[r] = third ? 0 : start;
      if (third) {
        lowest[1 + r] = start;
        next_digit(units[r], p.rows, lowest + 1 + p.rows + r);
      }
      next_digit(units[r], 2 * p.rows, out + r);
      store_digit(units[r], 2 * p.rows, out + p.rows + r);
      const float factor =
          is_nan[r] ? std::bit_cast<float>(0x7fc00000) : E2M1IntegerRows<Level>::group_factor(p, r, k);
      starts[p.rows + r] = std::bit_cast<int32_t>(factor * (third ? 0x1p-10f : 0.5f / (1 << kFine)));
    }
  }

 private:
  /// Whether one of the values was NaN; all are then zero.
  static bool to_units(const uint16_t* values, __m256i (&units)[4]) {
    __m256 nan = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      const __m128i halves = _mm_load_si128(reinterpret_cast<const __m128i*>(values) + i);
      const __m256 value = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      units[i] = _mm256_cvtps_epi32(_mm256_mul_ps(value, _mm256_set1_ps(512.0f)));
    }
    if (_mm256_movemask_ps(nan) == 0) return false;
    for (__m256i& of : units) of = _mm256_setzero_si256();
    return true;
  }
  /// Takes the lowest digit of each from what is left.
  static void next_digit(__m256i (&rest)[4], int stride, int32_t* out) {
    const __m256i middle = _mm256_set1_epi32(1 << (kBits - 1)),
                  low_bits = _mm256_set1_epi32((1 << kBits) - 1);
    __m256i digit[4];
    for (int i = 0; i < 4; ++i) {
      const __m256i raised = _mm256_add_epi32(rest[i], middle);
      digit[i] = _mm256_sub_epi32(_mm256_and_si256(raised, low_bits), middle);
      rest[i] = _mm256_srai_epi32(raised, kBits);
    }
    store_digit(digit, stride, out);
  }
  /// As bytes, four k in a dword.
  static void store_digit(const __m256i (&digit)[4], int stride, int32_t* out) {
    const __m256i words0 = _mm256_packs_epi32(digit[0], digit[1]);
    const __m256i words1 = _mm256_packs_epi32(digit[2], digit[3]);
    const __m256i bytes = _mm256_packs_epi16(words0, words1);  // dwords 0 2 4 6 1 3 5 7
    alignas(32) int32_t dwords[kE2M1Dwords];
    _mm256_store_si256(reinterpret_cast<__m256i*>(dwords),
                       _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    for (int64_t d = 0; d < kE2M1Dwords; ++d) out[d * stride] = dwords[d];
  }
};

/// The packing of a kernel.
template <class Rows>
struct E2M1Packing {
  static size_t bytes(int rows, int64_t k) {
    return kernel::round_to_cache_line(
        static_cast<size_t>(kernel::groups_of(k, kernel::kMxGroup) * Rows::stride(rows)) * sizeof(int32_t));
  }
  static void pack(const kernel::PackRows& p) {
    auto* out = static_cast<int32_t*>(p.out);
    for (int64_t k = 0; k < p.k; k += kernel::kMxGroup, out += Rows::stride(p.rows)) {
      Rows::pack_group(p, k, std::min<int64_t>(kernel::kMxGroup, p.k - k), out);
    }
  }
};

}  // namespace megamoe::isa_avx2
