// Group kernels of the generic level: its plain kernels, group by group.
#include "kernel/group_tile.h"

#include "kernel/isa/generic/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_generic {

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_4x32_generic",
    .isa = Isa::kGeneric,
    .family = kernel::Family::kBf16,
    .max_rows = 4,
    .packed_bytes = kernel::GroupTile<F32, gemm_bf16, float, 4>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_bf16, float, 4>::pack,
    .tile = kernel::GroupTile<F32, gemm_bf16, float, 4>::run,
};

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_4x32_generic",
    .isa = Isa::kGeneric,
    .family = kernel::Family::kS8,
    .max_rows = 4,
    .packed_bytes = kernel::GroupTile<F32, gemm_s8, int32_t, 4>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_s8, int32_t, 4>::pack,
    .tile = kernel::GroupTile<F32, gemm_s8, int32_t, 4>::run,
};

}  // namespace megamoe::isa_generic
