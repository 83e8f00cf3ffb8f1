// Products straight from stored MX codes by fp32 multiply-add, without AVX512_VBMI: the values and the order
// of sums are those of a strip, which at a few rows takes longer to make than to multiply.
#pragma once

#include <immintrin.h>

#include "kernel/by_rows.h"
#include "kernel/by_strips.h"
#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {

/// Nibbles, eight k of a column in a dword: each dword looks its float up by its low four bits.
struct E2M1Codes {
  static constexpr kernel::WeightCode kCode = kernel::WeightCode::kE2M1;
  static constexpr int kBits = 4;
  static constexpr int kStep = 8;    ///< k of one load
  static constexpr int kRaised = 0;  ///< values come 2^-kRaised times too small
  /// Scale bytes under which every value is a bfloat16 number; others go by strips.
  static constexpr int kFirstByte = 0, kLastByte = 255;
  using Loaded = __m512i[2];

  E2M1Codes()
      : values_(_mm512_setr_ps(0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f,
                               -4.f, -6.f)) {}
  [[gnu::always_inline]] static void load(const uint8_t* codes, Loaded& loaded) {
    loaded[0] = _mm512_loadu_si512(codes);
    loaded[1] = _mm512_loadu_si512(codes + 64);
  }
  /// Of k number `k` of the load.
  [[gnu::always_inline]] void values(const Loaded& loaded, int k, __m512& w0, __m512& w1) const {
    const auto shift = static_cast<unsigned>(k % 4 * 8 + k / 4 * 4);
    w0 = _mm512_permutexvar_ps(_mm512_srli_epi32(loaded[0], shift), values_);
    w1 = _mm512_permutexvar_ps(_mm512_srli_epi32(loaded[1], shift), values_);
  }

 private:
  __m512 values_;
};

/// Codes of a byte as the upper bits of float16, of which the CPU makes floats, subnormal ones too. NaN of
/// E4M3, which float16 has elsewhere, has the scale NaN.
template <class Format>
struct ByteCodes : Format {
  static constexpr int kBits = 8;
  static constexpr int kStep = 2;
  using Loaded = __m512i[2];

  [[gnu::always_inline]] static void load(const uint8_t* codes, Loaded& loaded) {
    loaded[0] = Format::halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
    loaded[1] = Format::halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes) + 1));
  }
  [[gnu::always_inline]] static void values(const Loaded& loaded, int k, __m512& w0, __m512& w1) {
    w0 = _mm512_cvtph_ps(_mm512_castsi512_si256(loaded[k]));
    w1 = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(loaded[k], 1));
  }
};

struct E4M3Format {
  static constexpr kernel::WeightCode kCode = kernel::WeightCode::kE4M3;
  static constexpr int kRaised = 8;                      // the exponent of float16 is 15 and not 7 too large
  static constexpr int kFirstByte = 3, kLastByte = 246;  // 2^-9 * 2^(3 - 127) is the smallest bfloat16
  [[gnu::always_inline]] static __m512i halves(__m256i codes) {
    const __m512i signs_above = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7);
    return _mm512_and_si512(signs_above, _mm512_set1_epi16(static_cast<int16_t>(0xbf80)));
  }
  /// Whether one of 64 codes is NaN, which float16 has elsewhere.
  [[gnu::always_inline]] static bool not_numbers(const uint8_t* codes) {
    const __m512i all = _mm512_or_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(static_cast<char>(0x80)));
    return _mm512_cmpeq_epi8_mask(all, _mm512_set1_epi8(static_cast<char>(0xff))) != 0;
  }
};
struct E5M2Format {
  static constexpr kernel::WeightCode kCode = kernel::WeightCode::kE5M2;
  static constexpr int kRaised = 0;
  static constexpr int kFirstByte = 10, kLastByte = 254;
  [[gnu::always_inline]] static __m512i halves(__m256i codes) {
    return _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
  }
};
using E4M3Codes = ByteCodes<E4M3Format>;
using E5M2Codes = ByteCodes<E5M2Format>;

/// The scales of a group of k, times 2^kRaised.
template <class Codes>
struct FloatScales {
  __m512 half[2];

  [[gnu::always_inline]] void load(const uint8_t* scales) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + h));
      __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(byte, _mm512_set1_epi32(Codes::kRaised)), 23);
      if constexpr (Codes::kFirstByte == 0) {  // 2^-127 is subnormal
        bits =
            _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(byte, byte), _mm512_set1_epi32(0x00400000));
      }
      if constexpr (Codes::kLastByte == 255) {
        bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255)),
                                     _mm512_set1_epi32(0x7fc00000));
      }
      half[h] = _mm512_castsi512_ps(bits);
    }
  }
  /// Columns of a group whose scales go by strips.
  [[gnu::always_inline]] static __mmask32 outside(const uint8_t* scales) {
    if constexpr (Codes::kFirstByte == 0 && Codes::kLastByte == 255) return 0;
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
    const __m256i above = _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(Codes::kFirstByte)));
    return _mm256_cmpgt_epu8_mask(above,
                                  _mm256_set1_epi8(static_cast<char>(Codes::kLastByte - Codes::kFirstByte)));
  }
};

/// What makes strips of codes for the bf16 kernels.
inline auto bf16_decoder(kernel::WeightCode code) {
  return row_ops.decode[static_cast<int>(kernel::Family::kBf16)][static_cast<int>(code)];
}

/// By way of a strip of a few groups, for codes and scales that the tile does not take.
template <class Codes>
void multiply_by_strips(const kernel::Tile& tile, int panel) {
  kernel::multiply_by_strips<kernel::PlainTile<gemm_bf16>>(tile, Codes::kCode, bf16_decoder(Codes::kCode),
                                                           kernel::kRangeStep, panel);
}

/// K a multiple of a group, kPanels panels at once: with few rows the sums of one wait for each other. Sums
/// has kRowCount, start, add(sums of the panels, activations of one k, column halves of each) and store.
template <class Level, class Codes, class Sums, int kPanels>
void tile_coded(const kernel::Tile& t) {
  constexpr int kRows = Sums::kRowCount, kStep = Codes::kStep;
  constexpr int64_t kBytes = kStep * kernel::kPanelColumns * Codes::kBits / 8;
  const int64_t stride = kernel::stored_panel_bytes(Codes::kCode, kernel::Family::kBf16, t.k);
  const Codes decoder;
  const auto* codes = static_cast<const uint8_t*>(t.panel);
  const uint8_t* const end = codes + stride;
  const auto* a = static_cast<const typename Sums::Operand*>(t.a);
  kernel::SpreadPrefetch<Level> prefetch(t, t.k / kStep * kernel::kPrefetchStride, 1);
  bool special = false;
  Sums sums[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) sums[p].start(t, 0);
  while (codes != end) {
    FloatScales<Codes> scales[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      scales[p].load(codes + p * stride);
      special |= scales[p].outside(codes + p * stride) != 0;
    }
    codes += kernel::kPanelColumns;
#pragma GCC unroll 1
    for (int k = 0; k < kernel::kMxGroup; k += kStep) {
      prefetch.step();
      typename Codes::Loaded loaded[kPanels];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) decoder.load(codes + p * stride, loaded[p]);
#pragma GCC unroll 8
      for (int i = 0; i < kStep; ++i) {
        __m512 w[kPanels][2];
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          decoder.values(loaded[p], i, w[p][0], w[p][1]);
          w[p][0] = _mm512_mul_ps(w[p][0], scales[p].half[0]);
          w[p][1] = _mm512_mul_ps(w[p][1], scales[p].half[1]);
        }
        Sums::add(sums, a + i * kRows, w);
        asm("" : "+r"(a));  // the next k after this one: there are registers for one
      }
      codes += kBytes;
      a += kStep * kRows;
    }
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    sums[p].store(static_cast<float*>(t.c) + p * kRows * kernel::kPanelColumns);
  }
  if (!special) return;
  for (int p = 0; p < kPanels; ++p) multiply_by_strips<Codes>(t, p);
}

/// The functions for 1 .. kMaxRows rows, and for two panels up to kPairedRows rows.
template <class Level, class Codes, template <int> class Sums, int kMaxRows, int kPairedRows>
struct CodedTiles {
  static void run(const kernel::Tile& t) {
    if (t.k % kernel::kMxGroup != 0) {
      for (int p = 0; p < t.panels; ++p) multiply_by_strips<Codes>(t, p);
      return;
    }
    const auto at = static_cast<size_t>(t.rows - 1);
    (t.panels == 2 ? kByRows<2, kPairedRows>[at] : kByRows<1, kMaxRows>[at])(t);
  }

 private:
  template <int kPanels, int kMost>
  static constexpr auto kByRows = kernel::functions_by_rows<kMost>([]<int kRows>() {
    return &tile_coded<Level, Codes, Sums<kRows>, kPanels>;
  });
};

}  // namespace megamoe::isa_avx512
