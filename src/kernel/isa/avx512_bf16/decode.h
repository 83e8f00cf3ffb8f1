// MX codes to strips by table look-up (AVX512_VBMI): the values of kernel/decode.h at the speed of memory.
#pragma once

#include <immintrin.h>

#include <array>

#include "kernel/contract.h"

namespace megamoe::isa_avx512_bf16 {

/// bfloat16 bits of every magnitude of a code format. Bit 0, which no value needs, marks what a scale is
/// added to: neither zero nor infinity nor NaN.
template <int kMantissa, int kBias, int kCodes, bool kSpecialTop>
consteval std::array<uint16_t, kCodes> code_magnitudes() {
  std::array<uint16_t, kCodes> table{};
  for (int code = 1; code < kCodes; ++code) {
    int exponent = code >> kMantissa, mantissa = code & ((1 << kMantissa) - 1);
    if (exponent == 0) {
      exponent = 1;
      while ((mantissa >> kMantissa) == 0) {
        mantissa *= 2;
        --exponent;
      }
      mantissa &= (1 << kMantissa) - 1;
    }
    table[static_cast<size_t>(code)] =
        static_cast<uint16_t>((exponent - kBias + 127) << 7 | mantissa << (7 - kMantissa) | 1);
  }
  if constexpr (kSpecialTop && kMantissa == 3) table[kCodes - 1] = 0x7fc0;  // E4M3: one NaN, no infinity
  if constexpr (kSpecialTop && kMantissa == 2) {                            // E5M2: infinity, three NaN
    table[kCodes - 4] = 0x7f80;
    for (int i = 1; i < 4; ++i) table[static_cast<size_t>(kCodes - i)] = 0x7fc0;
  }
  return table;
}

/// A format whose values reach from 2^kLowest to below 2^(kHighest + 1).
struct E4M3Codes {
  static constexpr auto kMagnitudes = code_magnitudes<3, 7, 128, true>();
  static constexpr int kBits = 8, kLowest = -9, kHighest = 8;
};
struct E5M2Codes {
  static constexpr auto kMagnitudes = code_magnitudes<2, 15, 128, true>();
  static constexpr int kBits = 8, kLowest = -16, kHighest = 15;
};
struct E2M1Codes {
  static constexpr auto kMagnitudes = code_magnitudes<1, 1, 8, false>();
  static constexpr int kBits = 4, kLowest = -1, kHighest = 2;
};

/// Two k of 32 columns as dwords of bfloat16 pairs, marked as in code_magnitudes.
struct MarkedPair {
  __m512i columns[2];
};

/// What the look-ups read, in registers while a panel is decoded.
struct alignas(64) ByteTables {
  uint8_t low[128], high[128];  ///< the two bytes of a value, by magnitude
  uint8_t order[64];

  template <class Codes>
  static consteval ByteTables of() {
    ByteTables tables{};
    for (size_t i = 0; i < 128; ++i) {
      tables.low[i] = static_cast<uint8_t>(Codes::kMagnitudes[i]);
      tables.high[i] = static_cast<uint8_t>(Codes::kMagnitudes[i] >> 8);
    }
    // Unpacking takes 8 bytes of each 16: 4 columns of the first half, then 4 of the second half.
    for (size_t i = 0; i < 64; ++i) {
      const size_t column = i / 16 * 4 + i % 8 / 2 + i % 16 / 8 * 16;
      tables.order[i] = static_cast<uint8_t>(column + i % 2 * kernel::kPanelColumns);
    }
    return tables;
  }
};

/// Codes of a byte: two look-ups in 128 entries for the two bytes of a value.
template <class Codes>
class PairDecoder {
 public:
  [[gnu::always_inline]] MarkedPair operator()(const uint8_t* codes) const {
    const __m512i code = _mm512_permutexvar_epi8(order_, _mm512_loadu_si512(codes));
    const __m512i low = _mm512_permutex2var_epi8(low_[0], code, low_[1]);
    const __m512i magnitude = _mm512_permutex2var_epi8(high_[0], code, high_[1]);
    const __m512i high =
        _mm512_ternarylogic_epi32(magnitude, code, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
    return {{_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)}};
  }

 private:
  static constexpr ByteTables kTables = ByteTables::of<Codes>();
  __m512i low_[2] = {_mm512_load_si512(kTables.low), _mm512_load_si512(kTables.low + 64)};
  __m512i high_[2] = {_mm512_load_si512(kTables.high), _mm512_load_si512(kTables.high + 64)};
  __m512i order_ = _mm512_load_si512(kTables.order);
};

/// Nibbles: the even k in the low half. Each word looks its code up by its low bits; bit 4 is of the other
/// code, so that the table stands twice.
struct alignas(64) NibbleTable {
  uint16_t values[32];

  static consteval NibbleTable make() {
    NibbleTable table{};
    for (size_t i = 0; i < 32; ++i) {
      table.values[i] = static_cast<uint16_t>(E2M1Codes::kMagnitudes[i % 8] | (i / 8 % 2) << 15);
    }
    return table;
  }
};

template <>
class PairDecoder<E2M1Codes> {
 public:
  [[gnu::always_inline]] MarkedPair operator()(const uint8_t* codes) const {
    MarkedPair pair;
    for (int half = 0; half < 2; ++half) {
      const __m512i both =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes) + half));
      const __m512i index = _mm512_or_si512(both, _mm512_slli_epi32(both, 12));
      pair.columns[half] = _mm512_permutexvar_epi16(index, table_);
    }
    return pair;
  }

 private:
  static constexpr NibbleTable kTable = NibbleTable::make();
  __m512i table_ = _mm512_load_si512(kTable.values);
};

/// The scales of one group of k, added to the exponents. Exact while no value leaves the normal range.
struct AddedScales {
  __m512i add[2];

  explicit AddedScales(const uint8_t* scales) {
    for (int half = 0; half < 2; ++half) {
      const __m512i byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + half));
      // (byte - 127) * 128, minus the mark, in both words.
      const __m512i word = _mm512_sub_epi32(_mm512_slli_epi32(byte, 7), _mm512_set1_epi32(127 * 128 + 1));
      add[half] = _mm512_mask_blend_epi16(0xaaaaaaaau, word, _mm512_slli_epi32(word, 16));
    }
  }
  [[gnu::always_inline]] __m512i operator()(__m512i marked, int half) const {
    const __mmask32 finite = _mm512_test_epi16_mask(marked, _mm512_set1_epi16(1));
    return _mm512_mask_add_epi16(marked, finite, marked, add[half]);
  }
};

/// Any scales: values times scales in float.
struct MultipliedScales {
  __m512 scale[2];

  explicit MultipliedScales(const uint8_t* scales) {
    for (int half = 0; half < 2; ++half) {
      const __m512i byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + half));
      __m512i bits = _mm512_slli_epi32(byte, 23);
      bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_setzero_si512()),
                                   _mm512_set1_epi32(0x00400000));
      bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255)),
                                   _mm512_set1_epi32(0x7fc00000));
      scale[half] = _mm512_castsi512_ps(bits);
    }
  }
  [[gnu::always_inline]] __m512i operator()(__m512i marked, int half) const {
    const __m512i pair = _mm512_andnot_si512(_mm512_set1_epi16(1), marked);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), scale[half]);
    const __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(pair, upper)), scale[half]);
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                           _mm512_and_si512(_mm512_castps_si512(odd), upper));
  }
};

inline constexpr int kAhead = 4096;  // a panel is read as one stream

template <class Codes>
constexpr int64_t mx_group_bytes() {
  return kernel::kPanelColumns * (1 + kernel::kMxGroup * Codes::kBits / 8);
}

/// Whether every value of a group is a normal bfloat16 under its scales.
template <class Codes>
[[gnu::always_inline]] inline bool all_values_normal(const uint8_t* group) {
  constexpr int kFirst = 1 - Codes::kLowest, kLast = 254 - Codes::kHighest;
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
  return _mm256_cmpgt_epu8_mask(_mm256_sub_epi8(bytes, _mm256_set1_epi8(kFirst)),
                                _mm256_set1_epi8(static_cast<char>(kLast - kFirst))) == 0;
}

template <class Codes, class Scales>
[[gnu::always_inline]] inline void decode_group(const PairDecoder<Codes>& decoder, const uint8_t* group,
                                                int64_t pairs, std::byte* strip) {
  constexpr int kPairBytes = 2 * kernel::kPanelColumns * Codes::kBits / 8;
  const Scales scales(group);
  const uint8_t* codes = group + kernel::kPanelColumns;
  for (int64_t pair = 0; pair < pairs; ++pair, codes += kPairBytes, strip += 2 * sizeof(__m512i)) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T1);
    const MarkedPair marked = decoder(codes);
    _mm512_store_si512(strip, scales(marked.columns[0], 0));
    _mm512_store_si512(strip + sizeof(__m512i), scales(marked.columns[1], 1));
  }
}

template <class Codes>
void decode_mx(const kernel::DecodePanel& d) {
  constexpr int64_t kGroupBytes = mx_group_bytes<Codes>();
  const PairDecoder<Codes> decoder;
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * kGroupBytes;
  auto* strip = static_cast<std::byte*>(d.strip);
  for (int64_t k = 0; k < d.k; k += kernel::kMxGroup, group += kGroupBytes) {
    const int64_t pairs = d.k - k < kernel::kMxGroup ? (d.k - k + 1) / 2 : int64_t{kernel::kMxGroup} / 2;
    if (all_values_normal<Codes>(group)) {
      decode_group<Codes, AddedScales>(decoder, group, pairs, strip);
    } else {
      decode_group<Codes, MultipliedScales>(decoder, group, pairs, strip);
    }
    strip += pairs * 2 * static_cast<int64_t>(sizeof(__m512i));
  }
}

}  // namespace megamoe::isa_avx512_bf16
