// The byte instructions of the avx512 level, as decode_bytes.h and decode_nibbles.h of avx2 ask
// for them: 64 bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel/contract.h"

namespace megamoe::isa_avx512 {

struct Bytes {
  using Vector = __m512i;
  static constexpr int kLoads = 1, kVectors = 2;

  [[gnu::always_inline]] static Vector load(const uint8_t* codes) { return _mm512_loadu_si512(codes); }
  [[gnu::always_inline]] static void load_pair(const uint8_t* codes, Vector (&loaded)[kLoads]) {
    static_assert(2 * kernel::kPanelColumns == sizeof(Vector));
    // Unpacking twice spreads the dwords of each quarter over two vectors.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    loaded[0] = _mm512_permutexvar_epi32(order, _mm512_loadu_si512(codes));
  }
  [[gnu::always_inline]] static void interleave(const Vector (&high)[kLoads], const Vector (&low)[kLoads],
                                                Vector (&pairs)[kVectors]) {
    Vector even, odd;
    unpack_bytes(low[0], high[0], even, odd);
    pairs[0] = _mm512_unpacklo_epi16(even, odd);
    pairs[1] = _mm512_unpackhi_epi16(even, odd);
  }
  /// Bytes of two vectors alternating: the lower eight of every 16, then the upper ones.
  [[gnu::always_inline]] static void unpack_bytes(Vector a, Vector b, Vector& lower, Vector& upper) {
    lower = _mm512_unpacklo_epi8(a, b);
    upper = _mm512_unpackhi_epi8(a, b);
  }
  [[gnu::always_inline]] static Vector table(const int8_t (&bytes)[16]) {
    return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  [[gnu::always_inline]] static Vector splat(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  [[gnu::always_inline]] static Vector shuffle(Vector table, Vector i) {
    return _mm512_shuffle_epi8(table, i);
  }
  [[gnu::always_inline]] static Vector low_nibbles(Vector x) { return both(x, splat(15)); }
  [[gnu::always_inline]] static Vector high_nibbles(Vector x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  [[gnu::always_inline]] static Vector both(Vector a, Vector b) { return _mm512_and_si512(a, b); }
  [[gnu::always_inline]] static Vector either(Vector a, Vector b) { return _mm512_or_si512(a, b); }
  [[gnu::always_inline]] static Vector differing(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
  [[gnu::always_inline]] static Vector difference(Vector a, Vector b) { return _mm512_sub_epi8(a, b); }
  [[gnu::always_inline]] static Vector magnitude(Vector a) { return _mm512_abs_epi8(a); }
  /// Of words.
  [[gnu::always_inline]] static Vector subtract_to_zero(Vector a, Vector b) {
    return _mm512_subs_epu16(a, b);
  }
  [[gnu::always_inline]] static Vector max_signed(Vector a, Vector b) { return _mm512_max_epi8(a, b); }
  [[gnu::always_inline]] static Vector max_unsigned(Vector a, Vector b) { return _mm512_max_epu8(a, b); }
  /// As unsigned bytes.
  [[gnu::always_inline]] static bool any_above(Vector a, int byte) {
    return _mm512_cmpgt_epu8_mask(a, splat(byte)) != 0;
  }
  /// Whether 32 bytes are in [first, last].
  [[gnu::always_inline]] static bool within(const uint8_t* bytes, int first, int last) {
    const __m256i from_first = _mm256_sub_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)),
                                               _mm256_set1_epi8(static_cast<char>(first)));
    return _mm256_cmpgt_epu8_mask(from_first, _mm256_set1_epi8(static_cast<char>(last - first))) == 0;
  }
  [[gnu::always_inline]] static void store(uint32_t* to, Vector x) { _mm512_store_si512(to, x); }
};

}  // namespace megamoe::isa_avx512
