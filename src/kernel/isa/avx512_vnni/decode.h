// int4 codes to strips of s8: the values of kernel/decode.h at the speed of memory.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"

namespace megamoe::isa_avx512_vnni {

/// Words of four nibbles, one word per column, to dwords of four signed bytes.
inline void decode_int4(const kernel::DecodePanel& d) {
  constexpr int kAhead = 4096;  // the panel is read once, as one stream
  const auto* stored = static_cast<const uint16_t*>(d.stored) + d.k_begin / 4 * kernel::kPanelColumns;
  auto* strip = static_cast<uint32_t*>(d.strip);
  const int64_t dwords = (d.k + 3) / 4 * kernel::kPanelColumns;
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
  for (int64_t i = 0; i < dwords; i += kernel::kPanelColumns) {
    _mm_prefetch(reinterpret_cast<const char*>(stored + i) + kAhead, _MM_HINT_T1);
    for (int half = 0; half < 2; ++half) {
      const __m512i word =
          _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(stored + i) + half));
      // Spread to bytes, then to nibbles: (x | x << bits) & mask.
      const __m512i two =
          _mm512_ternarylogic_epi32(word, _mm512_slli_epi32(word, 8), _mm512_set1_epi32(0x00ff00ff), 0xa8);
      const __m512i four =
          _mm512_ternarylogic_epi32(two, _mm512_slli_epi32(two, 4), _mm512_set1_epi32(0x0f0f0f0f), 0xa8);
      _mm512_store_si512(strip + i + 16 * half, _mm512_shuffle_epi8(values, four));
    }
  }
}

}  // namespace megamoe::isa_avx512_vnni
