// Vectors of columns of the avx2 level, as e2m1_tile.h asks for them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel/isa/avx2/load.h"

namespace megamoe::isa_avx2 {

// Not constexpr: g++ would make them in registers that it does not have.
alignas(32) inline constinit const uint32_t kLowNibbles[8] = {0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f,
                                                              0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f};
alignas(32) inline constinit const
    float kMinusZero[8] = {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f};
struct E2M1Lanes {
  using Vector = __m256i;
  using Floats = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRoomySums = 8;  ///< so many leave a register for a mask

  [[gnu::always_inline]] static Vector table(__m128i bytes) { return _mm256_broadcastsi128_si256(bytes); }
  /// 4 k of 8 columns each from 32 bytes of codes: the low or the high nibbles by `values`.
  template <int kShift, bool kRoomy>
  [[gnu::always_inline]] static Vector weights(const uint32_t* codes, Vector values) {
    __m256i nibbles = load_dwords(codes);
    if constexpr (kShift != 0) nibbles = _mm256_srli_epi16(nibbles, kShift);
    if constexpr (kRoomy) {
      nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    } else {
      asm("vpand %1, %0, %0" : "+x"(nibbles) : "m"(kLowNibbles));
    }
    return _mm256_shuffle_epi8(values, nibbles);
  }
  [[gnu::always_inline]] static Vector zero() { return _mm256_setzero_si256(); }
  [[gnu::always_inline]] static Vector splat(int32_t x) { return _mm256_set1_epi32(x); }
  [[gnu::always_inline]] static Vector add(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
  template <int kBits>
  [[gnu::always_inline]] static Vector shift_left(Vector a) {
    return _mm256_slli_epi32(a, kBits);
  }
  [[gnu::always_inline]] static Floats to_float(Vector a) { return _mm256_cvtepi32_ps(a); }
  [[gnu::always_inline]] static Floats splat_float(float x) { return _mm256_set1_ps(x); }
  /// A multiply-add: multiplications that end in subnormal numbers are several times slower.
  [[gnu::always_inline]] static Floats product(Floats a, Floats b) {
    asm("vfmadd213ps %2, %1, %0" : "+x"(a) : "x"(b), "m"(kMinusZero));
    return a;
  }
  [[gnu::always_inline]] static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  template <bool kAny>
  [[gnu::always_inline]] static Floats scale(const uint8_t* bytes) {
    return scales_of_bytes<kAny>(bytes);
  }
  [[gnu::always_inline]] static Floats load(const float* p) { return _mm256_load_ps(p); }
  [[gnu::always_inline]] static void store(float* p, Floats x) { _mm256_store_ps(p, x); }
};

}  // namespace megamoe::isa_avx2
