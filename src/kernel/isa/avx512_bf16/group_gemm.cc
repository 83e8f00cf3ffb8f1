// Group kernels of the avx512_bf16 level: its plain kernels, group by group.
#include <immintrin.h>

#include "kernel/group_tile.h"

#include "kernel/kernels.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

struct F32 {
  static constexpr int kLanes = 16;
  __m512 v;

  static F32 set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32 load_converted(const float* p) { return load(p); }
  static void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
  static F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  friend F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
};

}  // namespace

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_12x32_avx512_bf16",
    .isa = Isa::kAvx512Bf16,
    .family = kernel::Family::kBf16,
    .max_rows = 12,
    .packed_bytes = kernel::GroupTile<F32, gemm_bf16, float, 12>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_bf16, float, 12>::pack,
    .tile = kernel::GroupTile<F32, gemm_bf16, float, 12>::run,
};

}  // namespace megamoe::isa_avx512_bf16
