// Group kernels of the avx512_bf16 level: its plain kernels, group by group, and tiles straight from codes.
#include <immintrin.h>

#include "kernel/by_strips.h"
#include "kernel/group_tile.h"
#include "kernel/isa/avx512_bf16/coded_groups.h"
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
};

struct Level {
  using Vector = F32;
};
using Groups = kernel::GroupTile<F32, gemm_bf16, float, kMaxRows>;
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
