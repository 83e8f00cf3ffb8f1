// E2M1 codes to strips of bfloat16 by byte shuffles: the values of kernel/decode.h, eight k of eight columns
// at a time.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernel/decode_groups.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/isa/avx2/simd.h"

namespace megamoe::isa_avx2 {

/// Four dwords of pairs of k of eight columns from a dword of codes for each: bytes(nibbles, high, low) makes
/// the bytes of their bfloat16 values.
template <class Bytes>
[[gnu::always_inline]] inline void nibble_pairs(const uint8_t* codes, __m256i (&pairs)[4], Bytes bytes) {
  // Two k of four columns, then the other two: unpacking makes dwords of the columns.
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i both = _mm256_shuffle_epi8(load_dwords(codes), order);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m256i high, low;
    bytes(_mm256_and_si256(half == 0 ? both : _mm256_srli_epi16(both, 4), nibble), high, low);
    pairs[2 * half] = _mm256_unpacklo_epi8(low, high);
    pairs[2 * half + 1] = _mm256_unpackhi_epi8(low, high);
  }
}

/// 16 bytes in both halves.
[[gnu::always_inline]] inline __m256i byte_table(const int8_t (&table)[16]) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
}

// The upper and the lower byte of values as bfloat16: of E2M1 times 2^126, then negative ones; of 0 to 15.
alignas(16) inline constinit const int8_t kE2M1High[16] = {
    0, 0x7e, 0x7e, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0, -0x02, -0x02, -0x02, -0x01, -0x01, -0x01, -0x01};
alignas(16) inline constinit const int8_t kE2M1Low[16] = {0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40,
                                                          0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40};
alignas(16) inline constinit const int8_t kIntHigh[16] = {0,    0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
                                                          0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41};
alignas(16) inline constinit const int8_t kIntLow[16] = {0,    -0x80, 0,    0x40, -0x80, -0x60, -0x40, -0x20,
                                                         0x00, 0x10,  0x20, 0x30, 0x40,  0x50,  0x60,  0x70};

/// The exponent by which the table raises values, so that every scale is a subtraction, which stops at zero.
inline constexpr int kE2M1Raised = 126;

inline void decode_e2m1(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  constexpr int64_t kLine = kPanelColumns * 4;  // eight k
  constexpr int64_t kGroupBytes = kPanelColumns + kernel::kMxGroup / 8 * kLine;
  constexpr int kFirst = 2, kLast = 252;  // scales under which all values are normal numbers
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * kGroupBytes;
  auto* strip = static_cast<uint32_t*>(d.strip);
  const __m256i high = byte_table(kE2M1High), low = byte_table(kE2M1Low);
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
        nibble_pairs(codes, decoded, [&](__m256i nibbles, __m256i& upper, __m256i& lower) {
          upper = _mm256_shuffle_epi8(high, nibbles);
          lower = _mm256_shuffle_epi8(low, nibbles);
        });
        for (int64_t i = 0; i < 4 && i < left; ++i) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * kPanelColumns),
                             _mm256_subs_epu16(decoded[i], change));
        }
      }
    }
    strip += pairs * kPanelColumns;
  }
}

/// int4 with scales of groups: codes less 8 and their zero point.
inline void decode_int4_groups(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  constexpr int64_t kLine = kPanelColumns * 4;  // eight k
  const __m256i high = byte_table(kIntHigh), low = byte_table(kIntLow);
  const __m256i of_column =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 4, 4, 8, 8, 12, 12, 0, 0, 4, 4, 8, 8, 12, 12));
  const uint8_t* group = kernel::first_group<F32>(d, 4);
  auto* strip = static_cast<uint32_t*>(d.strip);
  float* scales = d.scales;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group) {
    const int64_t k = std::min(d.form.group, d.k - begin), pairs = (k + 1) / 2;
    const uint8_t* const codes = group + d.form.header_bytes();
    for (int column = 0; column < kPanelColumns; column += 8) {
      F32::store(scales + column, kernel::group_scale<F32>(d.form, group, column));
      const __m256i offset = kernel::int4_offset<F32>(d.form, group, column).v;
      const __m256i offsets = _mm256_shuffle_epi8(offset, of_column);
      // Differences of more than four bits and a sign are not in the tables.
      const bool wide = _mm256_testz_si256(offset, _mm256_set1_epi32(~15)) == 0;
      const uint8_t* from = codes + column * 4;
      uint32_t* out = strip + column;
      for (int64_t left = pairs; left > 0; left -= 4, from += kLine, out += 4 * kPanelColumns) {
        if (wide) {
          kernel::nibbles_to_bf16<F32>(F32::bits(F32::load(reinterpret_cast<const float*>(from))),
                                       std::min<int64_t>(left, 4), reinterpret_cast<float*>(out),
                                       [&](I32 code) { return F32::from_int(code - I32{offset}); });
          continue;
        }
        __m256i decoded[4];
        nibble_pairs(from, decoded, [&](__m256i nibbles, __m256i& upper, __m256i& lower) {
          const __m256i difference = _mm256_sub_epi8(nibbles, offsets);
          const __m256i magnitude = _mm256_abs_epi8(difference);
          const __m256i sign = _mm256_and_si256(difference, _mm256_set1_epi8(static_cast<char>(0x80)));
          upper = _mm256_or_si256(_mm256_shuffle_epi8(high, magnitude), sign);
          lower = _mm256_shuffle_epi8(low, magnitude);
        });
        for (int64_t i = 0; i < 4 && i < left; ++i) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(out + i * kPanelColumns), decoded[i]);
        }
      }
    }
    scales += kPanelColumns;
    strip += pairs * kPanelColumns;
    group = codes + (k + 7) / 8 * kLine;
  }
}

}  // namespace megamoe::isa_avx2
