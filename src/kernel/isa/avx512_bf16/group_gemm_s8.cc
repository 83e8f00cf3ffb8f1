// s8 group kernel of the avx512_bf16 level: the tiles of avx512_vnni with the look-ups of AVX512_VBMI.
#include "kernel/isa/avx512_vnni/group_tile.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

// Weights are read once in a call. CPUs on which this level is the fastest are AMD's.
struct Level {
  static constexpr auto kLocality = kernel::Locality::kOnce;
};

/// By vpermb, for which a table that stands four times needs no mask.
class PermutedNibbles {
 public:
  [[gnu::always_inline]] explicit PermutedNibbles(__m128i table) : values_(_mm512_broadcast_i32x4(table)) {}

  [[gnu::always_inline]] __m512i low(__m512i codes) const { return _mm512_permutexvar_epi8(codes, values_); }
  [[gnu::always_inline]] __m512i high(__m512i codes) const { return low(_mm512_srli_epi16(codes, 4)); }

 private:
  __m512i values_;
};

constexpr int kMaxRows = isa_avx512_vnni::kGroupRows;
using Rows = isa_avx512_vnni::GroupRows<Level>;
template <class Codes>
using Tiles = isa_avx512_vnni::GroupCodeTiles<Level, Codes, PermutedNibbles>;

}  // namespace

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_7x32_avx512_bf16",
    .isa = Isa::kAvx512Bf16,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = Rows::bytes,
    .pack_rows = Rows::pack,
    .tile = nullptr,
    .coded_rows = {0, 0, 0, kMaxRows, 0, kMaxRows, 0},
    .coded_tile = {nullptr, nullptr, nullptr, Tiles<isa_avx512_vnni::E2M1Groups>::run, nullptr,
                   Tiles<isa_avx512_vnni::Int4Groups>::run, nullptr},
    .kept_rows = {0, 0, 0, isa_avx512_vnni::kKeptRows},
};

}  // namespace megamoe::isa_avx512_bf16
