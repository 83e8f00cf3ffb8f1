// Vectors of weights, and what their scale bytes have; stored panels of codes may begin anywhere.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace megamoe::isa_avx2 {

[[gnu::always_inline]] inline __m256i load_dwords(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

struct alignas(32) ThirtyTwoBytes {
  uint8_t bytes[32];

  consteval explicit ThirtyTwoBytes(int byte) : bytes() {
    for (uint8_t& each : bytes) each = static_cast<uint8_t>(byte);
  }
};
// Not constexpr: g++ would make them in registers that tiles do not have. Not inline: levels that share this
// header keep their own.
template <int kByte>
static constinit const ThirtyTwoBytes kThirtyTwo{kByte};

/// Whether the scale bytes of all 32 columns are in [kFirst, kLast].
template <int kFirst, int kLast>
[[gnu::always_inline]] inline bool scales_within(const uint8_t* bytes) {
  __m256i outside;  // loaded here alone: the compiler would keep the bytes on the stack
  asm("vmovdqu %1, %0" : "=x"(outside) : "m"(*reinterpret_cast<const __m256i_u*>(bytes)));
  asm("vpsubb %1, %0, %0" : "+x"(outside) : "m"(kThirtyTwo<kFirst>));
  asm("vpsubusb %1, %0, %0" : "+x"(outside) : "m"(kThirtyTwo<kLast - kFirst>));
  return _mm256_testz_si256(outside, outside) != 0;
}

// Not constexpr either.
alignas(32) inline constinit const uint32_t kLeastScale[8] = {1 << 22, 1 << 22, 1 << 22, 1 << 22,
                                                              1 << 22, 1 << 22, 1 << 22, 1 << 22};
alignas(32) inline constinit const uint32_t kInfinity[8] = {0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000,
                                                            0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000};

/// 2^(byte - 127) of 8 columns. With kAny byte 0 is a subnormal number, byte 255 NaN.
template <bool kAny>
[[gnu::always_inline]] inline __m256 scales_of_bytes(const uint8_t* bytes) {
  __m256i bits =
      _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))), 23);
  if constexpr (!kAny) return _mm256_castsi256_ps(bits);
  asm("vpmaxsd %1, %0, %0" : "+x"(bits) : "m"(kLeastScale));
  __m256i nan;
  asm("vpcmpeqd %2, %1, %0" : "=x"(nan) : "x"(bits), "m"(kInfinity));
  return _mm256_castsi256_ps(_mm256_sub_epi32(bits, nan));
}

}  // namespace megamoe::isa_avx2
