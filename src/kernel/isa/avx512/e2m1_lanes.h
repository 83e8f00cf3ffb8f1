// Vectors of columns of the levels from avx512 on, as e2m1_tile.h of avx2 asks for them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace megamoe::isa_avx512 {

// Constants that tall tiles have no registers for. Not constexpr: g++ would put copies on the stack. Not
// inline: levels that share this header keep their own.
constinit const int32_t kLowNibbles = 0x0f0f0f0f, kLeastScale = 1 << 22, kNoScale = 255;
constinit const float kMinusZero = -0.0f;

struct E2M1Lanes {
  using Vector = __m512i;
  using Floats = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRoomySums = 20;  ///< so many leave a register for a mask

  [[gnu::always_inline]] static Vector table(__m128i bytes) { return _mm512_broadcast_i32x4(bytes); }
  /// 4 k of 16 columns each from 64 bytes of codes: the low or the high nibbles by `values`.
  template <int kShift, bool kRoomy>
  [[gnu::always_inline]] static Vector weights(const uint32_t* codes, Vector values) {
    __m512i nibbles = _mm512_loadu_si512(codes);
    if constexpr (kShift != 0) nibbles = _mm512_srli_epi16(nibbles, kShift);
    if constexpr (kRoomy) {
      nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    } else {
      asm("vpandd %1%{1to16%}, %0, %0" : "+v"(nibbles) : "m"(kLowNibbles));
    }
    return _mm512_shuffle_epi8(values, nibbles);
  }
  [[gnu::always_inline]] static Vector zero() { return _mm512_setzero_si512(); }
  [[gnu::always_inline]] static Vector splat(int32_t x) { return _mm512_set1_epi32(x); }
  [[gnu::always_inline]] static Vector add(Vector a, Vector b) { return _mm512_add_epi32(a, b); }
  template <int kBits>
  [[gnu::always_inline]] static Vector shift_left(Vector a) {
    return _mm512_slli_epi32(a, kBits);
  }
  [[gnu::always_inline]] static Floats to_float(Vector a) { return _mm512_cvtepi32_ps(a); }
  [[gnu::always_inline]] static Floats splat_float(float x) { return _mm512_set1_ps(x); }
  /// A multiply-add: multiplications that end in subnormal numbers are several times slower.
  [[gnu::always_inline]] static Floats product(Floats a, Floats b) {
    asm("vfmadd213ps %2%{1to16%}, %1, %0" : "+v"(a) : "v"(b), "m"(kMinusZero));
    return a;
  }
  [[gnu::always_inline]] static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  /// 2^(byte - 127) of 16 columns. With kAny byte 0 is a subnormal number, byte 255 NaN.
  template <bool kAny>
  [[gnu::always_inline]] static Floats scale(const uint8_t* bytes) {
    const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    __m512i bits = _mm512_slli_epi32(byte, 23);
    if constexpr (!kAny) return _mm512_castsi512_ps(bits);
    asm("vpmaxsd %1%{1to16%}, %0, %0" : "+v"(bits) : "m"(kLeastScale));
    __mmask16 nan;
    asm("vpcmpeqd %2%{1to16%}, %1, %0" : "=Yk"(nan) : "v"(byte), "m"(kNoScale));
    return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, byte));
  }
  [[gnu::always_inline]] static Floats load(const float* p) { return _mm512_load_ps(p); }
  [[gnu::always_inline]] static void store(float* p, Floats x) { _mm512_store_ps(p, x); }
};

}  // namespace megamoe::isa_avx512
