// Group kernels of the avx2 level: its plain kernels, group by group.
#include "kernel/group_tile.h"

#include "base/cpu.h"
#include "kernel/isa/avx2/simd.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx2 {

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_6x32_avx2",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kBf16,
    .max_rows = 6,
    .packed_bytes = kernel::GroupTile<F32, gemm_bf16, float, 6>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_bf16, float, 6>::pack,
    .tile = kernel::GroupTile<F32, gemm_bf16, float, 6>::run,
};

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_6x32_avx2",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kS8,
    .max_rows = 6,
    .packed_bytes = kernel::GroupTile<F32, gemm_s8, int32_t, 6>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_s8, int32_t, 6>::pack,
    .tile = kernel::GroupTile<F32, gemm_s8, int32_t, 6>::run,
};

constinit const kernel::Gemm group_gemm_s8_vnni = {
    .name = "s8_groups_6x32_avx2_vnni",
    .isa = Isa::kAvx2,
    .family = kernel::Family::kS8,
    .max_rows = 6,
    .packed_bytes = kernel::GroupTile<F32, gemm_s8_vnni, int32_t, 6>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_s8_vnni, int32_t, 6>::pack,
    .tile = kernel::GroupTile<F32, gemm_s8_vnni, int32_t, 6>::run,
    .features = base::kCpuAvxVnni,
};

}  // namespace megamoe::isa_avx2
