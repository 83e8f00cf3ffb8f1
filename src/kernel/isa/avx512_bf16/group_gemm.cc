// Group kernels of the avx512_bf16 level: its plain kernels, group by group, and tiles straight from codes.
#include "kernel/by_strips.h"
#include "kernel/group_tile.h"
#include "kernel/isa/avx512/group_floats.h"
#include "kernel/isa/avx512_bf16/coded_groups.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

struct Level {
  using Vector = isa_avx512::GroupFloats<Level>;
};
using Groups = kernel::GroupTile<Level::Vector, gemm_bf16, float, kMaxRows>;
template <bool kTall>
using Int4Codes = Int4GroupCodes<false, kTall>;
template <bool kTall>
using Int4Differences = Int4GroupCodes<true, kTall>;
template <template <bool> class Codes>
using Coded = CodedGroupTiles<Level, Codes, Bf16Sums, gemm_bf16, kMaxRows>;

void run_int4(const kernel::Tile& t) {
  if (t.form.zeros ? Coded<Int4Differences>::run(t) : Coded<Int4Codes>::run(t)) return;
  // Zero points that leave no five bits.
  constexpr auto kCode = kernel::WeightCode::kInt4Groups;
  const auto decode =
      isa_avx512::row_ops.decode[static_cast<int>(kernel::Family::kBf16)][static_cast<int>(kCode)];
  for (int p = 0; p < t.panels; ++p) kernel::multiply_by_strips<Groups>(t, kCode, decode, t.group, p);
}
void run_e4m3(const kernel::Tile& t) {
  Coded<E4M3GroupCodes>::run(t);
}

}  // namespace

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_12x32_avx512_bf16",
    .isa = Isa::kAvx512Bf16,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = Groups::bytes,
    .pack_rows = Groups::pack,
    .tile = Groups::run,
    .coded_rows = {0, 0, 0, 0, 0, kMaxRows, kMaxRows},
    .paired_rows = {0, 0, 0, 0, 0, kPairedGroupRows, kPairedGroupRows},
    .coded_tile = {nullptr, nullptr, nullptr, nullptr, nullptr, run_int4, run_e4m3},
};

}  // namespace megamoe::isa_avx512_bf16
