// Group kernels of the avx512 level: its plain kernels, group by group, and tiles straight from codes.
#include "kernel/group_tile.h"

#include "kernel/isa/avx512/coded_groups.h"
#include "kernel/isa/avx512/simd.h"
#include "kernel/isa/avx512/sums.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512 {
namespace {

// Rows whose sums leave registers for codes and what they decode to, of one panel and of two.
constexpr int kCodedRows = 10, kPairedRows = 3;

template <class Codes>
using Coded = CodedGroupTiles<F32, Codes, Bf16Sums, kCodedRows, kPairedRows>;

void run_int4(const kernel::Tile& t) {
  t.form.zeros ? Coded<Int4GroupCodes<true>>::run(t) : Coded<Int4GroupCodes<false>>::run(t);
}

}  // namespace

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_12x32_avx512",
    .isa = Isa::kAvx512,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::GroupTile<F32, gemm_bf16, float, kMaxRows>::bytes,
    .pack_rows = kernel::GroupTile<F32, gemm_bf16, float, kMaxRows>::pack,
    .tile = kernel::GroupTile<F32, gemm_bf16, float, kMaxRows>::run,
    .coded_rows = {0, 0, 0, 0, 0, kCodedRows, kCodedRows},
    .paired_rows = {0, 0, 0, 0, 0, kPairedRows, kPairedRows},
    .coded_tile = {nullptr, nullptr, nullptr, nullptr, nullptr, run_int4, Coded<E4M3GroupCodes>::run},
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
