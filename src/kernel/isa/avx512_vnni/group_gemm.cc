// Group kernel of the avx512_vnni level.
#include "kernel/isa/avx512_vnni/group_tile.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_vnni {
namespace {

struct Level {
  static constexpr auto kLocality = kernel::Locality::kCaches;
};

template <class Codes>
using Tiles = GroupCodeTiles<Level, Codes, ShuffledNibbles>;

}  // namespace

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_7x32_avx512_vnni",
    .isa = Isa::kAvx512Vnni,
    .family = kernel::Family::kS8,
    .max_rows = kGroupRows,
    .packed_bytes = GroupRows<Level>::bytes,
    .pack_rows = GroupRows<Level>::pack,
    .tile = nullptr,
    .coded_rows = {0, 0, 0, kGroupRows, 0, kGroupRows, 0},
    .coded_tile = {nullptr, nullptr, nullptr, Tiles<E2M1Groups>::run, nullptr, Tiles<Int4Groups>::run,
                   nullptr},
    .kept_rows = {0, 0, 0, kKeptRows},
};

}  // namespace megamoe::isa_avx512_vnni
