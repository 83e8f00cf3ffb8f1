// Scales of MX groups at the ends of their exponents, for products that count subnormal numbers as zero: what
// would be one has the exponent 0 and any mantissa.
#pragma once

#include <immintrin.h>

#include "kernel/isa/avx512_bf16/decode.h"

namespace megamoe::isa_avx512_bf16 {

/// Whether no scale of a group is above 2^(last - 127).
[[gnu::always_inline]] inline bool all_up_to(const uint8_t* group, int last) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
  return _mm256_cmpgt_epu8_mask(bytes, _mm256_set1_epi8(static_cast<char>(made_for(group, last)))) == 0;
}

/// Whether one of the codes of a group is an infinity or a NaN of E5M2.
[[gnu::always_inline]] inline bool has_specials(const uint8_t* group) {
  const auto* const codes = reinterpret_cast<const __m512i*>(group + kernel::kPanelColumns);
  __m512i positive = _mm512_setzero_si512(), negative = positive;
#pragma GCC unroll 16
  for (int i = 0; i < kernel::kMxGroup / 2; ++i) {
    const __m512i line = _mm512_loadu_si512(codes + i);
    positive = _mm512_max_epi8(positive, line);
    negative = _mm512_max_epu8(negative, line);
  }
  const __m512i last = _mm512_set1_epi32(made_for(group, 0x7b7b7b7b));
  const __mmask64 above = _mm512_cmpgt_epi8_mask(positive, last);
  return _kortestz_mask64_u8(
             above, _mm512_cmpgt_epu8_mask(
                        negative, _mm512_set1_epi32(made_for(group, static_cast<int>(0xfbfbfbfbu))))) == 0;
}

/// 64 bytes, in tall tiles every time anew: there is no register to keep them in.
template <bool kTall>
[[gnu::always_inline]] inline __m512i loaded(const void* from) {
  if constexpr (!kTall) return _mm512_load_si512(from);
  __m512i bits;
  asm volatile("vmovdqa64 %1, %0" : "=v"(bits) : "m"(*static_cast<const __m512i*>(from)));
  return bits;
}

inline constinit const int32_t kMagnitudeBits = 0x7fff7fff, kSignBits = static_cast<int32_t>(0x80008000u);
[[gnu::always_inline]] inline __m512i magnitude_of(__m512i entry) {
  asm("vpandd %1%{1to16%}, %0, %0" : "+v"(entry) : "m"(kMagnitudeBits));
  return entry;
}
[[gnu::always_inline]] inline __m512i with_sign_of(__m512i entry, __m512i magnitude) {
  asm("vpternlogd $0xf8, %2%{1to16%}, %1, %0" : "+v"(magnitude) : "v"(entry), "m"(kSignBits));
  return magnitude;
}

/// Scales of codes of a byte that are subtracted from exponents, down to zero: of at most 1 where tables are
/// not raised.
template <class Codes>
struct LowScales {
  static constexpr int kLast = Codes::kRaised == 0 ? 127 : 254 - Codes::kHighest;
  std::byte* room;  ///< kScaleRoom bytes

  [[gnu::always_inline]] void load(const uint8_t* scales) {
    for (int half = 0; half < 2; ++half) {
      const __m512i byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + half));
      const __m512i word =
          _mm512_sub_epi32(_mm512_set1_epi32(made_for(scales, kExcess<Codes>)), _mm512_slli_epi32(byte, 7));
      _mm512_store_si512(room + 64 * half, _mm512_or_si512(word, _mm512_slli_epi32(word, 16)));
    }
  }
  [[gnu::always_inline]] __m512i operator()(__m512i entry, int half) const {
    const auto& change = *reinterpret_cast<const __m512i*>(room + 64 * half);
    __m512i magnitude = magnitude_of(entry);
    if constexpr (Codes::kRaised != 0) {
      asm("vpsubusw %1, %0, %0" : "+v"(magnitude) : "m"(change));
    } else {
      __mmask32 finite;
      asm("vptestmw %2, %1, %0" : "=k"(finite) : "v"(entry), "m"(kMarks));
      asm("vpsubusw %2, %0, %0 %{%1%}" : "+v"(magnitude) : "Yk"(finite), "m"(change));
    }
    return with_sign_of(entry, magnitude);
  }
};

/// The table of nibbles, and the same without 0.5, from which the least of all scales takes more than its
/// exponent has.
inline constinit const NibbleTable kLeastNibbles =
    NibbleTable::of([](size_t i) { return i % 16 % 8 == 1 && i >= 16 ? uint16_t{0} : raised_e2m1(i); });

/// Values of nibbles under scales up to which none is infinite. Full tiles have no registers for the columns
/// of the least scale, fuller ones for none.
template <bool kFull, bool kFuller>
class LeastNibbles {
 public:
  using CodeDecoder = Decoder<E2M1Codes, true>;
  static constexpr int kLast = 254 - E2M1Codes::kHighest;

  template <class Decoder>
  [[gnu::always_inline]] void start(const Decoder&, const uint8_t* group, std::byte* room) {
    room_ = room;
    ExponentScales<E2M1Codes> scales;
    scales.load(group);
    for (int half = 0; half < 2; ++half) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(group) + half);
      const __mmask16 least = _mm_cmpeq_epi8_mask(bytes, _mm_setzero_si128());
      _mm512_store_si512(room + 64 * half, scales.change[half]);
      _mm512_store_si512(room + 128 + 64 * half, _mm512_maskz_set1_epi32(least, made_for(group, 0x00100010)));
    }
  }
  [[gnu::always_inline]] __m512i load(const uint8_t* codes, int half) const {
    return exchanged_bytes(codes + 64 * half);
  }
  [[gnu::always_inline]] __m512i pair(__m512i from, int pair, int half) const {
    __m512i entries = nibble_pair(from, pair);
    asm("vpternlogd $0xec, %2%{1to16%}, %1, %0"  // the nibble, bit 4 of the column
        : "+v"(entries)
        : "v"(loaded<kFull>(room_ + 64 * (2 + half))), "m"(kLowNibbles));
    return _mm512_subs_epu16(look_up(entries, kLeastNibbles), loaded<kFuller>(room_ + 64 * half));
  }

 private:
  inline static constinit const int32_t kLowNibbles = 0x000f000f;
  std::byte* room_;
};

inline constinit const Words kInfinities{0x7f80};

/// Any scales: added to exponents without wrapping.
template <class Codes>
struct SaturatingScales {
  std::byte* room;  ///< kScaleRoom bytes

  [[gnu::always_inline]] void load(const uint8_t* scales) {
    for (int half = 0; half < 2; ++half) {
      const __m512i byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + half));
      const __m512i word =
          _mm512_sub_epi32(_mm512_slli_epi32(byte, 7), _mm512_set1_epi32(made_for(scales, kExcess<Codes>)));
      _mm512_store_si512(room + 64 * half,
                         _mm512_mask_blend_epi16(0xaaaaaaaau, word, _mm512_slli_epi32(word, 16)));
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(made_for(scales, 255)));
      _mm512_store_si512(room + 128 + 64 * half, _mm512_maskz_set1_epi32(nan, made_for(scales, 0x7fc07fc0)));
    }
  }
  [[gnu::always_inline]] __m512i operator()(__m512i entry, int half) const {
    const auto memory = [](const void* at) -> const __m512i& { return *static_cast<const __m512i*>(at); };
    __mmask32 finite;
    if constexpr (Codes::kRaised == 0) {
      asm("vptestmw %2, %1, %0" : "=k"(finite) : "v"(entry), "m"(kMarks));
    } else {
      finite = _mm512_test_epi16_mask(entry, entry);
    }
    __m512i magnitude = magnitude_of(entry);
    asm("vpaddsw %2, %0, %0 %{%1%}" : "+v"(magnitude) : "Yk"(finite), "m"(memory(room + 64 * half)));
    asm("vpminsw %2, %0, %0 %{%1%}" : "+v"(magnitude) : "Yk"(finite), "m"(kInfinities));
    asm("vpmaxsw %1, %0, %0" : "+v"(magnitude) : "m"(memory(room + 128 + 64 * half)));
    return with_sign_of(entry, magnitude);
  }
};

/// Values of a group: what the decoder leaves to scales, and they.
template <class Decoder, class Scales>
class ScaledValues {
 public:
  using CodeDecoder = Decoder;
  [[gnu::always_inline]] void start(const Decoder& decoder, const uint8_t* group, std::byte* room) {
    begin(decoder, room);
    scales_.load(group);
  }
  /// With what Scales::words has made of the scales.
  [[gnu::always_inline]] void start(const Decoder& decoder, __m512i words, std::byte* room) {
    begin(decoder, room);
    scales_.set(words);
  }
  [[gnu::always_inline]] auto load(const uint8_t* codes, int half) const {
    return decoder_->load(codes, half);
  }
  template <class Loaded>
  [[gnu::always_inline]] __m512i pair(const Loaded& from, int pair, int half) const {
    return scales_(decoder_->pair(from, pair, half), half);
  }

 private:
  [[gnu::always_inline]] void begin(const Decoder& decoder, std::byte* room) {
    decoder_ = &decoder;
    if constexpr (requires { scales_.room; }) scales_.room = room;
  }

  const Decoder* decoder_;
  Scales scales_;
};

}  // namespace megamoe::isa_avx512_bf16
