// The vector types of the avx512 level: 16 lanes. The functions are those of isa/generic/simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "format/float16.h"

namespace megamoe::isa_avx512 {

struct I32 {
  __m512i v;

  static I32 set(int32_t x) { return {_mm512_set1_epi32(x)}; }
  static void store(uint8_t* p, I32 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
  }
  static void store(uint8_t* p, I32 x, int count) {
    _mm_mask_storeu_epi8(p, first_lanes(count), _mm512_cvtepi32_epi8(x.v));
  }
  static void store_byte_pairs(uint8_t* p, I32 even, I32 odd) {
    const __m512i words = _mm512_or_si512(even.v, _mm512_slli_epi32(odd.v, 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
  }
  static void store_nibble_pairs(uint8_t* p, I32 even, I32 odd) {
    store(p, {_mm512_or_si512(even.v, _mm512_slli_epi32(odd.v, 4))});
  }
  static I32 load(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static I32 load(const uint8_t* p, int count) {
    return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(count), p))};
  }
  static void store_nibbles(uint8_t* row, int64_t i, I32 x) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(row + i / 2), pairs(x));
  }
  static void store_nibbles(uint8_t* row, int64_t i, I32 x, int count) {
    _mm_mask_storeu_epi8(row + i / 2, first_lanes(count / 2), pairs(x));
  }
  static I32 load_nibbles(const uint8_t* row, int64_t i) {
    return nibbles(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + i / 2)));
  }
  static I32 load_nibbles(const uint8_t* row, int64_t i, int count) {
    return nibbles(_mm_maskz_loadu_epi8(first_lanes((count + 1) / 2), row + i / 2));
  }

  static I32 max(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
  static I32 max_each(const I32 (&a)[16]) {
    // Folded to halves, to quarters in the order 4 i + k, then inside the quarters.
    __m512i quarters[4];
    for (int k = 0; k < 4; ++k) {
      const __m512i p = fold<0x44, 0xee>(a[k].v, a[4 + k].v);
      const __m512i q = fold<0x44, 0xee>(a[8 + k].v, a[12 + k].v);
      quarters[k] = fold<0x88, 0xdd>(p, q);
    }
    __m512i pairs[2];
    for (int k = 0; k < 2; ++k) {
      pairs[k] = _mm512_max_epi32(_mm512_unpacklo_epi64(quarters[2 * k], quarters[2 * k + 1]),
                                  _mm512_unpackhi_epi64(quarters[2 * k], quarters[2 * k + 1]));
    }
    const __m512 p = _mm512_castsi512_ps(pairs[0]), q = _mm512_castsi512_ps(pairs[1]);
    return {_mm512_max_epi32(_mm512_castps_si512(_mm512_shuffle_ps(p, q, 0x88)),
                             _mm512_castps_si512(_mm512_shuffle_ps(p, q, 0xdd)))};
  }
  static bool any_less(I32 a, I32 b) { return _mm512_cmplt_epi32_mask(a.v, b.v) != 0; }
  static int32_t max_lanes(I32 a) { return _mm512_reduce_max_epi32(a.v); }
  static I32 select_less(I32 a, I32 b, I32 x, I32 y) {
    return {_mm512_mask_mov_epi32(y.v, _mm512_cmplt_epi32_mask(a.v, b.v), x.v)};
  }
  static I32 merge(I32 mask, I32 a, I32 b) { return {_mm512_ternarylogic_epi32(mask.v, a.v, b.v, 0xca)}; }
  template <int kBits>
  static I32 shift_left(I32 a) {
    return {_mm512_slli_epi32(a.v, kBits)};
  }
  template <int kBits>
  static I32 shift_right(I32 a) {
    return {_mm512_srli_epi32(a.v, kBits)};
  }
  friend I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
  friend I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
  friend I32 operator&(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
  friend I32 operator|(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }

 private:
  static __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }
  template <int kLow, int kHigh>
  static __m512i fold(__m512i a, __m512i b) {
    return _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, kLow), _mm512_shuffle_i32x4(a, b, kHigh));
  }
  static __m128i pairs(I32 x) {
    return _mm512_cvtepi64_epi8(_mm512_or_si512(x.v, _mm512_srli_epi64(x.v, 28)));
  }
  static I32 nibbles(__m128i packed) {
    const __m512i pair = _mm512_cvtepu8_epi64(packed);
    return {_mm512_and_si512(_mm512_or_si512(pair, _mm512_slli_epi64(pair, 28)), _mm512_set1_epi32(15))};
  }
};

/// 32 lanes of 16 bits.
struct I16 {
  __m512i v;

  static I16 set(int x) { return {_mm512_set1_epi16(static_cast<int16_t>(x))}; }
  static I16 load(const uint16_t* p) { return {_mm512_loadu_si512(p)}; }
  static I16 from_pairs(I32 x) { return {x.v}; }
  static void store_bytes(uint8_t* p, I16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi16_epi8(x.v));
  }
  /// Codes in four vectors as bytes side by side: the magnitudes of `codes`, at most `largest`, the signs of
  /// `x`.
  static void store_bytes(uint8_t* p, const I16 (&codes)[4], const I16 (&x)[4], int largest) {
    const __m512i most = _mm512_set1_epi8(static_cast<char>(largest));
    for (int half = 0; half < 2; ++half) {
      const __m512i low = codes[2 * half].v, high = codes[2 * half + 1].v;
      const __m512i bytes = signed_bytes<7>(_mm512_min_epu8(_mm512_packus_epi16(low, high), most),
                                            x[2 * half], x[2 * half + 1]);
      // Packing left the eights of the two vectors alternating.
      const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
      _mm512_storeu_si512(p + 64 * half, _mm512_permutexvar_epi64(order, bytes));
    }
  }
  /// The same as halves of bytes; `codes` have three bits.
  static void store_nibbles(uint8_t* p, const I16 (&codes)[4], const I16 (&x)[4]) {
    __m512i words[2];
    for (int half = 0; half < 2; ++half) {
      const __m512i low = codes[2 * half].v, high = codes[2 * half + 1].v;
      const __m512i bytes = signed_bytes<3>(_mm512_packus_epi16(low, high), x[2 * half], x[2 * half + 1]);
      words[half] = _mm512_maddubs_epi16(bytes, _mm512_set1_epi16(0x1001));
    }
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(words[0], words[1])));
  }
  /// The larger half of every dword, in the high one.
  static I32 max_of_pairs(I16 x) { return {_mm512_max_epu16(x.v, _mm512_slli_epi32(x.v, 16))}; }
  /// Lanes with a < b, both unsigned, and x not 0.
  static __mmask32 less_and_not_zero(I16 a, I16 b, I16 x) {
    return _mm512_mask_test_epi16_mask(_mm512_cmplt_epu16_mask(a.v, b.v), x.v, x.v);
  }
  /// table[index % 32]
  static I16 lookup(I16 table, I16 index) { return {_mm512_permutexvar_epi16(index.v, table.v)}; }
  /// a - b, unsigned, or 0.
  static I16 subtract_to_zero(I16 a, I16 b) { return {_mm512_subs_epu16(a.v, b.v)}; }
  static I16 min(I16 a, I16 b) { return {_mm512_min_epi16(a.v, b.v)}; }
  static I16 max(I16 a, I16 b) { return {_mm512_max_epi16(a.v, b.v)}; }
  static I16 select_less(I16 a, I16 b, I16 x, I16 y) {
    return {_mm512_mask_mov_epi16(y.v, _mm512_cmplt_epi16_mask(a.v, b.v), x.v)};
  }
  static I16 merge(I16 mask, I16 a, I16 b) { return {_mm512_ternarylogic_epi32(mask.v, a.v, b.v, 0xca)}; }
  /// Counts of 16 and more leave 0.
  static I16 shift_left(I16 a, I16 counts) { return {_mm512_sllv_epi16(a.v, counts.v)}; }
  static I16 shift_right(I16 a, I16 counts) { return {_mm512_srlv_epi16(a.v, counts.v)}; }
  template <int kBits>
  static I16 shift_right(I16 a) {
    return {_mm512_srli_epi16(a.v, kBits)};
  }
  template <int kBits>
  static I16 shift_right_signed(I16 a) {
    return {_mm512_srai_epi16(a.v, kBits)};
  }
  static I16 and_not(I16 not_a, I16 b) { return {_mm512_andnot_si512(not_a.v, b.v)}; }
  friend I16 operator+(I16 a, I16 b) { return {_mm512_add_epi16(a.v, b.v)}; }
  friend I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi16(a.v, b.v)}; }
  friend I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }

 private:
  /// Bit kBit of every byte becomes the sign of the lane of `low` or `high` that it was packed from.
  template <int kBit>
  static __m512i signed_bytes(__m512i bytes, I16 low, I16 high) {
    // Saturation keeps the signs.
    __m512i signs = _mm512_packs_epi16(low.v, high.v);
    if constexpr (kBit < 7) signs = _mm512_srli_epi16(signs, 7 - kBit);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(1 << kBit)), signs, bytes, 0xca);
  }
};

/// Order of the high halves of the lanes of two vectors.
struct alignas(64) HighHalves {
  uint16_t words[32];
  consteval HighHalves() : words() {
    for (int i = 0; i < 32; ++i) words[i] = static_cast<uint16_t>(2 * i + 1);
  }
};
inline constexpr HighHalves kHighHalves;

struct F32 {
  using Int = I32;
  using Words = I16;
  static constexpr int kLanes = 16;
  __m512 v;

  static F32 set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32 load(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  struct Pair;
  static Pair load_pairs(const uint16_t* p);
  static F32 load(const format::Float16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static F32 load_converted(const float* p) { return load(p); }
  static F32 load_converted(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
  static void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
  static void store(uint16_t* p, F32 x) { store(p, x, kLanes); }
  static void store(uint16_t* p, const F32 (&x)[2]) { _mm512_storeu_si512(p, narrow(x)); }
  static void stream(uint16_t* p, const F32 (&x)[2]) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow(x));
  }
  static void store(int8_t* p, F32 x) { store(p, x, kLanes); }

  static F32 load(const float* p, int count) { return {_mm512_maskz_loadu_ps(first_lanes(count), p)}; }
  static F32 load(const uint16_t* p, int count) {
    return widen(_mm256_maskz_loadu_epi16(first_lanes(count), p));
  }
  static F32 load(const format::Float16* p, int count) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), p))};
  }
  static void store(float* p, F32 x, int count) { _mm512_mask_storeu_ps(p, first_lanes(count), x.v); }
  static void store(uint16_t* p, F32 x, int count) {
    _mm256_mask_storeu_epi16(p, first_lanes(count), _mm512_cvtepi32_epi16(bf16_bits(x)));
  }
  static void store(int8_t* p, F32 x, int count) {
    _mm_mask_storeu_epi8(p, first_lanes(count), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
  }

  static void store_pairs(int8_t* p, F32 even, F32 odd) {
    const __m512i low = _mm512_cvtps_epi32(even.v), high = _mm512_slli_epi32(_mm512_cvtps_epi32(odd.v), 16);
    const __m512i words = _mm512_mask_mov_epi16(low, 0xaaaaaaaau, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi16_epi8(words));
  }

  static F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static F32 negate(F32 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
  static F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
  static F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
  static F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static F32 zero_if_nan(F32 a) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_ORD_Q), a.v)};
  }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm512_mask_mov_ps(y.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), x.v)};
  }
  static F32 round_to_bf16(F32 a) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(bf16_high(a), _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
  }
  static F32 scale_exponent(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
  static float max_lanes(F32 a) { return _mm512_reduce_max_ps(a.v); }
  static Int bits(F32 a) { return {_mm512_castps_si512(a.v)}; }
  static F32 from_bits(Int a) { return {_mm512_castsi512_ps(a.v)}; }
  static F32 from_int(Int a) { return {_mm512_cvtepi32_ps(a.v)}; }
  static Int to_int(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
  static F32 lookup(const float* table, Int i) { return {_mm512_i32gather_ps(i.v, table, 4)}; }
  static void stream_line(void* out, const void* in) {
    _mm512_stream_si512(static_cast<__m512i*>(out), _mm512_loadu_si512(in));
  }
  static void stream_end() { _mm_sfence(); }

  friend F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }

 private:
  static __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }
  static F32 widen(__m256i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
  }
  /// Rounded to nearest even, in the high half of each lane; NaN becomes quiet. By integers: the conversion
  /// instruction would flush subnormals.
  static __m512i bf16_high(F32 a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x400000));
  }
  /// The same in the low half.
  static __m512i bf16_bits(F32 a) { return _mm512_srli_epi32(bf16_high(a), 16); }
  /// The high halves of both.
  static __m512i narrow(const F32 (&a)[2]) {
    return _mm512_permutex2var_epi16(bf16_high(a[0]), _mm512_load_si512(kHighHalves.words), bf16_high(a[1]));
  }
};

struct F32::Pair {
  F32 even, odd;
};
inline F32::Pair F32::load_pairs(const uint16_t* p) {
  const __m512i both = _mm512_loadu_si512(p);
  const __m512i odd = _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u)));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))}, {_mm512_castsi512_ps(odd)}};
}

}  // namespace megamoe::isa_avx512
