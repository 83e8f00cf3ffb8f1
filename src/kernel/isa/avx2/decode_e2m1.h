// E2M1 codes to strips of bfloat16 by byte shuffles: the values of kernel/decode.h, eight k of eight columns
// at a time.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernel/decode.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/isa/avx2/simd.h"

namespace megamoe::isa_avx2 {

/// The exponent by which the table raises values, so that every scale is a subtraction, which stops at zero.
inline constexpr int kE2M1Raised = 126;

/// Four pairs of k of eight columns from a dword of codes for each; `change` in both words of a dword.
[[gnu::always_inline]] inline void e2m1_pairs(const uint8_t* codes, __m256i change, __m256i (&pairs)[4]) {
  // The upper and the lower byte of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 as bfloat16, times 2^126, then negative
  // ones.
  const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(
      0, 0x7e, 0x7e, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0, -0x02, -0x02, -0x02, -0x01, -0x01, -0x01, -0x01));
  const __m256i lower = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40, 0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40));
  // Two k of four columns, then the other two: unpacking makes dwords of the columns.
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i both = _mm256_shuffle_epi8(load_dwords(codes), order);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i entries = _mm256_and_si256(half == 0 ? both : _mm256_srli_epi16(both, 4), nibble);
    const __m256i low = _mm256_shuffle_epi8(lower, entries), high = _mm256_shuffle_epi8(upper, entries);
    pairs[2 * half] = _mm256_subs_epu16(_mm256_unpacklo_epi8(low, high), change);
    pairs[2 * half + 1] = _mm256_subs_epu16(_mm256_unpackhi_epi8(low, high), change);
  }
}

inline void decode_e2m1(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  constexpr int64_t kLine = kPanelColumns * 4;  // eight k
  constexpr int64_t kGroupBytes = kPanelColumns + kernel::kMxGroup / 8 * kLine;
  constexpr int kFirst = 2, kLast = 252;  // scales under which all values are normal numbers
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * kGroupBytes;
  auto* strip = static_cast<uint32_t*>(d.strip);
  for (int64_t k = 0; k < d.k; k += kernel::kMxGroup, group += kGroupBytes) {
    const int64_t pairs = (std::min<int64_t>(kernel::kMxGroup, d.k - k) + 1) / 2;
    const __m256i scales = load_dwords(group);
    const __m256i within = _mm256_and_si256(
        _mm256_cmpeq_epi8(_mm256_max_epu8(scales, _mm256_set1_epi8(kFirst)), scales),
        _mm256_cmpeq_epi8(_mm256_min_epu8(scales, _mm256_set1_epi8(static_cast<char>(kLast))), scales));
    if (_mm256_movemask_epi8(within) != -1) {
      kernel::DecodePanel part = d;
      part.k_begin = d.k_begin + k;
      part.k = std::min<int64_t>(kernel::kMxGroup, d.k - k);
      part.strip = strip;
      kernel::decode_mx<F32, quant::E2M1>(part);
      strip += pairs * kPanelColumns;
      continue;
    }
    for (int column = 0; column < kPanelColumns; column += 8) {
      const __m256i bytes =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(group + column)));
      const __m256i word =
          _mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(127 + kE2M1Raised), bytes), 7);
      const __m256i change = _mm256_or_si256(word, _mm256_slli_epi32(word, 16));
      const uint8_t* codes = group + kPanelColumns + column * 4;
      uint32_t* out = strip + column;
      for (int64_t left = pairs; left > 0; left -= 4, codes += kLine, out += 4 * kPanelColumns) {
        __m256i decoded[4];
        e2m1_pairs(codes, change, decoded);
        for (int64_t i = 0; i < 4 && i < left; ++i) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * kPanelColumns), decoded[i]);
        }
      }
    }
    strip += pairs * kPanelColumns;
  }
}

}  // namespace megamoe::isa_avx2
