// The floats of the levels from avx512_bf16 on, as kernel/group_tile.h asks for them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace megamoe::isa_avx512 {

/// `Level` is of one translation unit, so that code made of this type stays in it: simd.h is avx512's own.
template <class Level>
struct GroupFloats {
  static constexpr int kLanes = 16;
  __m512 v;

  static GroupFloats set(float x) { return {_mm512_set1_ps(x)}; }
  static GroupFloats load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static GroupFloats load_converted(const float* p) { return load(p); }
  static GroupFloats load_converted(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
  static void store(float* p, GroupFloats x) { _mm512_storeu_ps(p, x.v); }
  static GroupFloats fma(GroupFloats a, GroupFloats b, GroupFloats c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
};

}  // namespace megamoe::isa_avx512
