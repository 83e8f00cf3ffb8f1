// Vectors of weights; stored panels of codes may begin anywhere.
#pragma once

#include <immintrin.h>

namespace megamoe::isa_avx2 {

[[gnu::always_inline]] inline __m256i load_dwords(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

}  // namespace megamoe::isa_avx2
