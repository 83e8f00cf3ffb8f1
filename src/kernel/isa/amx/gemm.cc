// s8 and bf16 tiles by AMX: up to 32 rows x 32 columns in four accumulator tiles. tdpbf16ps treats subnormal
// inputs and sums as zero.
#include "kernel/contract.h"
#include "kernel/isa/amx/product.h"
#include "kernel/kernels.h"

namespace megamoe::isa_amx {
namespace {

using kernel::Family;
struct Level;

/// Activations in blocks of 64 bytes of k.
template <Family kFamily>
size_t packed_bytes(int rows, int64_t k) {
  const int64_t blocks = (k * code_bytes(kFamily) + kTileRowBytes - 1) / kTileRowBytes;
  return static_cast<size_t>(rows) * static_cast<size_t>(blocks) * kTileRowBytes;
}

template <Family kFamily>
void pack_rows(const kernel::PackRows& p) {
  pack_blocks(static_cast<const std::byte*>(p.codes), p.row_bytes, p.rows, p.k * code_bytes(kFamily),
              kTileRowBytes, static_cast<std::byte*>(p.out));
}

template <Family kFamily, bool kTwoHalves>
void tile_amx(const kernel::Tile& t) {
  Product<kFamily, kTwoHalves> product(t.rows, kTileRowBytes);
  if (t.accumulate) product.load_sums(t.c);
  const int64_t dwords = kernel::panel_bytes(kFamily, t.k) / kPanelRowBytes;
  kernel::SpreadPrefetch<Level> prefetch(t, dwords, 1);
  product.add(static_cast<const std::byte*>(t.a) + packed_bytes<kFamily>(t.rows, t.k_begin),
              static_cast<const std::byte*>(t.panel), dwords, prefetch);
  product.store_sums(t.c);
  release();
}

template <Family kFamily>
void run(const kernel::Tile& t) {
  t.rows > kTileRows ? tile_amx<kFamily, true>(t) : tile_amx<kFamily, false>(t);
}

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_32x32_amx",
    .isa = Isa::kAmx,
    .family = Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = packed_bytes<Family::kBf16>,
    .pack_rows = pack_rows<Family::kBf16>,
    .tile = run<Family::kBf16>,
};

constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_32x32_amx",
    .isa = Isa::kAmx,
    .family = Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = packed_bytes<Family::kS8>,
    .pack_rows = pack_rows<Family::kS8>,
    .tile = run<Family::kS8>,
};

}  // namespace megamoe::isa_amx
