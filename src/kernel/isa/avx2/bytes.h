// The byte instructions of the avx2 level, as decode_bytes.h and decode_nibbles.h ask for them:
// 32 bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel/contract.h"
#include "kernel/isa/avx2/load.h"

namespace megamoe::isa_avx2 {

struct Bytes {
  using Vector = __m256i;
  static constexpr int kLoads = 2, kVectors = 4;

  [[gnu::always_inline]] static Vector load(const uint8_t* codes) { return load_dwords(codes); }
  [[gnu::always_inline]] static void load_pair(const uint8_t* codes, Vector (&loaded)[kLoads]) {
    // Unpacking twice spreads the dwords of each half over four vectors.
    const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    loaded[0] = _mm256_permutevar8x32_epi32(load_dwords(codes), order);
    loaded[1] = _mm256_permutevar8x32_epi32(load_dwords(codes + kernel::kPanelColumns), order);
  }
  [[gnu::always_inline]] static void interleave(const Vector (&high)[kLoads], const Vector (&low)[kLoads],
                                                Vector (&pairs)[kVectors]) {
    Vector even0, even1, odd0, odd1;
    unpack_bytes(low[0], high[0], even0, even1);
    unpack_bytes(low[1], high[1], odd0, odd1);
    pairs[0] = _mm256_unpacklo_epi16(even0, odd0);
    pairs[1] = _mm256_unpackhi_epi16(even0, odd0);
    pairs[2] = _mm256_unpacklo_epi16(even1, odd1);
    pairs[3] = _mm256_unpackhi_epi16(even1, odd1);
  }
  /// Bytes of two vectors alternating: the lower eight of every 16, then the upper ones.
  [[gnu::always_inline]] static void unpack_bytes(Vector a, Vector b, Vector& lower, Vector& upper) {
    lower = _mm256_unpacklo_epi8(a, b);
    upper = _mm256_unpackhi_epi8(a, b);
  }
  [[gnu::always_inline]] static Vector table(const int8_t (&bytes)[16]) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  [[gnu::always_inline]] static Vector splat(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  [[gnu::always_inline]] static Vector shuffle(Vector table, Vector i) {
    return _mm256_shuffle_epi8(table, i);
  }
  [[gnu::always_inline]] static Vector low_nibbles(Vector x) { return both(x, splat(15)); }
  [[gnu::always_inline]] static Vector high_nibbles(Vector x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  [[gnu::always_inline]] static Vector both(Vector a, Vector b) { return _mm256_and_si256(a, b); }
  [[gnu::always_inline]] static Vector either(Vector a, Vector b) { return _mm256_or_si256(a, b); }
  [[gnu::always_inline]] static Vector differing(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
  [[gnu::always_inline]] static Vector difference(Vector a, Vector b) { return _mm256_sub_epi8(a, b); }
  [[gnu::always_inline]] static Vector magnitude(Vector a) { return _mm256_abs_epi8(a); }
  /// Of words.
  [[gnu::always_inline]] static Vector subtract_to_zero(Vector a, Vector b) {
    return _mm256_subs_epu16(a, b);
  }
  [[gnu::always_inline]] static Vector max_signed(Vector a, Vector b) { return _mm256_max_epi8(a, b); }
  [[gnu::always_inline]] static Vector max_unsigned(Vector a, Vector b) { return _mm256_max_epu8(a, b); }
  /// As unsigned bytes.
  [[gnu::always_inline]] static bool any_above(Vector a, int byte) {
    const __m256i above = _mm256_subs_epu8(a, splat(byte));
    return _mm256_testz_si256(above, above) == 0;
  }
  /// Whether 32 bytes are in [first, last].
  [[gnu::always_inline]] static bool within(const uint8_t* bytes, int first, int last) {
    return !any_above(_mm256_sub_epi8(load_dwords(bytes), splat(first)), last - first);
  }
  [[gnu::always_inline]] static void store(uint32_t* to, Vector x) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), x);
  }
};

}  // namespace megamoe::isa_avx2
