// Group kernels of the avx512 level: its plain kernels, group by group.
#include "kernel/group_tile.h"

#include "kernel/isa/avx512/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kBf16,
    .max_rows = 12,
    .packed_bytes = kernel::GroupTile<F32, gemm_bf16, float, 12>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_bf16, float, 12>::pack,
    .tile = kernel::GroupTile<F32, gemm_bf16, float, 12>::run,
};

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kS8,
    .max_rows = 12,
    .packed_bytes = kernel::GroupTile<F32, gemm_s8, int32_t, 12>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_s8, int32_t, 12>::pack,
    .tile = kernel::GroupTile<F32, gemm_s8, int32_t, 12>::run,
};

}  // namespace megamoe::isa_avx512
