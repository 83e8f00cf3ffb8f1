// The vector types of the avx2 level: 8 lanes. The functions are those of isa/generic/simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "format/float16.h"

namespace megamoe::isa_avx2 {

struct I32 {
  __m256i v;

  static I32 set(int32_t x) { return {_mm256_set1_epi32(x)}; }
  static void store(uint8_t* p, I32 x) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), bytes(x)); }
  static void store(uint8_t* p, I32 x, int count) {
    alignas(16) uint8_t lanes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), bytes(x));
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
  }
  static void store_byte_pairs(uint8_t* p, I32 even, I32 odd) {
    const __m256i words = _mm256_or_si256(even.v, _mm256_slli_epi32(odd.v, 8));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static void store_nibble_pairs(uint8_t* p, I32 even, I32 odd) {
    store(p, {_mm256_or_si256(even.v, _mm256_slli_epi32(odd.v, 4))});
  }
  static I32 load(const uint8_t* p) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
  }
  static I32 load(const uint8_t* p, int count) {
    uint8_t lanes[8] = {};
    for (int i = 0; i < count; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store_nibbles(uint8_t* row, int64_t i, I32 x) {
    const uint32_t packed = pairs(x);
    std::memcpy(row + i / 2, &packed, 4);
  }
  static void store_nibbles(uint8_t* row, int64_t i, I32 x, int count) {
    const uint32_t packed = pairs(x);
    for (int pair = 0; pair < count / 2; ++pair) row[i / 2 + pair] = static_cast<uint8_t>(packed >> 8 * pair);
  }
  static I32 load_nibbles(const uint8_t* row, int64_t i) {
    uint32_t packed;
    std::memcpy(&packed, row + i / 2, 4);
    return nibbles(packed);
  }
  static I32 load_nibbles(const uint8_t* row, int64_t i, int count) {
    uint32_t packed = 0;
    for (int pair = 0; pair < (count + 1) / 2; ++pair) packed |= uint32_t{row[i / 2 + pair]} << 8 * pair;
    return nibbles(packed);
  }

  static I32 max(I32 a, I32 b) { return {_mm256_max_epi32(a.v, b.v)}; }
  static I32 max_each(const I32 (&a)[8]) {
    __m256i halves[4], quarters[2];
    for (int i = 0; i < 4; ++i) {
      halves[i] = _mm256_max_epi32(_mm256_permute2x128_si256(a[i].v, a[i + 4].v, 0x20),
                                   _mm256_permute2x128_si256(a[i].v, a[i + 4].v, 0x31));
    }
    for (int i = 0; i < 2; ++i) {
      quarters[i] = _mm256_max_epi32(_mm256_unpacklo_epi64(halves[2 * i], halves[2 * i + 1]),
                                     _mm256_unpackhi_epi64(halves[2 * i], halves[2 * i + 1]));
    }
    const __m256 p = _mm256_castsi256_ps(quarters[0]), q = _mm256_castsi256_ps(quarters[1]);
    return {_mm256_max_epi32(_mm256_castps_si256(_mm256_shuffle_ps(p, q, 0x88)),
                             _mm256_castps_si256(_mm256_shuffle_ps(p, q, 0xdd)))};
  }
  static bool any_less(I32 a, I32 b) { return _mm256_movemask_epi8(_mm256_cmpgt_epi32(b.v, a.v)) != 0; }
  static int32_t max_lanes(I32 a) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
  }
  static I32 select_less(I32 a, I32 b, I32 x, I32 y) {
    return {_mm256_blendv_epi8(y.v, x.v, _mm256_cmpgt_epi32(b.v, a.v))};
  }
  static I32 merge(I32 mask, I32 a, I32 b) {
    return {_mm256_or_si256(_mm256_and_si256(mask.v, a.v), _mm256_andnot_si256(mask.v, b.v))};
  }
  template <int kBits>
  static I32 shift_left(I32 a) {
    return {_mm256_slli_epi32(a.v, kBits)};
  }
  template <int kBits>
  static I32 shift_right(I32 a) {
    return {_mm256_srli_epi32(a.v, kBits)};
  }
  friend I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
  friend I32 operator-(I32 a, I32 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
  friend I32 operator&(I32 a, I32 b) { return {_mm256_and_si256(a.v, b.v)}; }
  friend I32 operator|(I32 a, I32 b) { return {_mm256_or_si256(a.v, b.v)}; }

 private:
  /// Low bytes of the lanes, in the low half of the result.
  static __m128i bytes(I32 x) {
    const __m256i low = _mm256_and_si256(x.v, _mm256_set1_epi32(255));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    return _mm_packus_epi16(words, words);
  }
  static uint32_t pairs(I32 x) {
    const __m256i pair = _mm256_or_si256(x.v, _mm256_srli_epi64(x.v, 28));
    const __m256i dwords = _mm256_permutevar8x32_epi32(pair, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    const __m128i low = _mm_shuffle_epi8(_mm256_castsi256_si128(dwords), _mm_set1_epi32(0x0c080400));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(low));
  }
  static I32 nibbles(uint32_t packed) {
    const __m256i pair = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(static_cast<int32_t>(packed)));
    return {_mm256_and_si256(_mm256_or_si256(pair, _mm256_slli_epi64(pair, 28)), _mm256_set1_epi32(15))};
  }
};

struct F32 {
  using Int = I32;
  static constexpr int kLanes = 8;
  __m256 v;

  static F32 set(float x) { return {_mm256_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static F32 load(const uint16_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  struct Pair;
  static Pair load_pairs(const uint16_t* p);
  static F32 load(const format::Float16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static F32 load_converted(const float* p) { return load(p); }
  static F32 load_converted(const int32_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static void store(float* p, F32 x) { _mm256_storeu_ps(p, x.v); }
  static void store(uint16_t* p, F32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x)); }
  static void store(uint16_t* p, const F32 (&x)[2]) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
  }
  static void stream(uint16_t* p, const F32 (&x)[2]) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(x));
  }
  static void store(int8_t* p, F32 x) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), to_int8(x)); }

  static F32 load(const float* p, int count) { return {_mm256_maskload_ps(p, first_lanes(count))}; }
  static F32 load(const uint16_t* p, int count) {
    alignas(16) uint16_t lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = p[i];
    return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(lanes)));
  }
  static F32 load(const format::Float16* p, int count) {
    alignas(16) uint16_t lanes[kLanes] = {};
    for (int i = 0; i < count; ++i) lanes[i] = p[i].bits;
    return {_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(lanes)))};
  }
  static void store(float* p, F32 x, int count) { _mm256_maskstore_ps(p, first_lanes(count), x.v); }
  static void store(uint16_t* p, F32 x, int count) {
    alignas(16) uint16_t lanes[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), narrow(x));
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
  }
  static void store(int8_t* p, F32 x, int count) {
    alignas(16) int8_t lanes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), to_int8(x));
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
  }

  static void store_pairs(int8_t* p, F32 even, F32 odd) {
    const __m256i low = _mm256_cvtps_epi32(even.v), high = _mm256_slli_epi32(_mm256_cvtps_epi32(odd.v), 16);
    const __m256i words = _mm256_blend_epi16(low, high, 0xaa);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }

  static F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static F32 negate(F32 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
  static F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
  static F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
  static F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
  static F32 zero_if_nan(F32 a) { return {_mm256_and_ps(a.v, _mm256_cmp_ps(a.v, a.v, _CMP_ORD_Q))}; }
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) {
    return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
  }
  static F32 round_to_bf16(F32 a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(a), 16))}; }
  static F32 scale_exponent(F32 a, F32 n) {
    const __m256i exponent = _mm256_cvtps_epi32(n.v);
    const __m256i half = _mm256_srai_epi32(exponent, 1);
    return a * power_of_two(half) * power_of_two(_mm256_sub_epi32(exponent, half));
  }
  static float max_lanes(F32 a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  static Int bits(F32 a) { return {_mm256_castps_si256(a.v)}; }
  static F32 from_bits(Int a) { return {_mm256_castsi256_ps(a.v)}; }
  static F32 from_int(Int a) { return {_mm256_cvtepi32_ps(a.v)}; }
  static Int to_int(F32 a) { return {_mm256_cvtps_epi32(a.v)}; }
  static F32 lookup(const float* table, Int i) { return {_mm256_i32gather_ps(table, i.v, 4)}; }
  static void stream_line(void* out, const void* in) {
    const auto* const from = static_cast<const __m256i*>(in);
    const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(static_cast<__m256i*>(out), low);
    _mm256_stream_si256(static_cast<__m256i*>(out) + 1, high);
  }
  static void stream_end() { _mm_sfence(); }

  friend F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }

 private:
  static __m256i first_lanes(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F32 widen(__m128i bits) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
  }
  /// Rounded to nearest even, in the low half of each lane; NaN becomes quiet.
  static __m256i bf16_bits(F32 a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
  }
  static __m128i narrow(F32 a) {
    const __m256i bits = bf16_bits(a);
    return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
  }
  static __m256i narrow(const F32 (&a)[2]) {
    const __m256i words = _mm256_packus_epi32(bf16_bits(a[0]), bf16_bits(a[1]));
    return _mm256_permute4x64_epi64(words, 0xd8);
  }
  static __m128i to_int8(F32 a) {
    const __m256i x = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    return _mm_packs_epi16(words, words);
  }
  static F32 power_of_two(__m256i n) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23))};
  }
};

struct F32::Pair {
  F32 even, odd;
};
inline F32::Pair F32::load_pairs(const uint16_t* p) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i odd = _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u)));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))}, {_mm256_castsi256_ps(odd)}};
}

}  // namespace megamoe::isa_avx2
