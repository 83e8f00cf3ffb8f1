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

}  // namespace megamoe::isa_avx2
