// Group kernels of the avx512_vnni level: its plain kernels, group by group.
#include <immintrin.h>

#include "kernel/group_tile.h"

#include "kernel/kernels.h"

namespace megamoe::isa_avx512_vnni {
namespace {

struct F32 {
  static constexpr int kLanes = 16;
  __m512 v;

  static F32 set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32 load_converted(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
  static void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
  static F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  friend F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
};

}  // namespace

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_12x32_avx512_vnni",
    .isa = Isa::kAvx512Vnni,
    .family = kernel::Family::kS8,
    .max_rows = 12,
    .packed_bytes = kernel::GroupTile<F32, gemm_s8, int32_t, 12>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_s8, int32_t, 12>::pack,
    .tile = kernel::GroupTile<F32, gemm_s8, int32_t, 12>::run,
};

}  // namespace megamoe::isa_avx512_vnni
