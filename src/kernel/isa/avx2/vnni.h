// The product of AVX-VNNI, which kernels with base::kCpuAvxVnni among their features may use.
#pragma once

#include <immintrin.h>

namespace megamoe::isa_avx2 {

/// sum += products of four bytes. In assembly, so that no other function is compiled for AVX-VNNI; {vex},
/// because the encoding of AVX512_VNNI is another one.
[[gnu::always_inline]] inline void dot(__m256i& sum, __m256i unsigned_codes, __m256i signed_codes) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(unsigned_codes), "x"(signed_codes));
}

}  // namespace megamoe::isa_avx2
