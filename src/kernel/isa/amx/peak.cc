// Peak loops of the amx level: four accumulator tiles of 16 x 16, full inputs.
#include "kernel/isa/amx/tiles.h"
#include "kernel/kernels.h"

namespace megamoe::isa_amx {
namespace {

constexpr int kUnroll = 8;

template <kernel::Family kFamily>
void run(int64_t iterations) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.row_bytes[tile] = 64;
  }
  configure(config);  // zeroes the tiles
  for (int64_t i = 0; i < iterations; ++i) {
    for (int j = 0; j < kUnroll; ++j) {
      dot<kFamily, 0, 4, 6>();
      dot<kFamily, 1, 4, 7>();
      dot<kFamily, 2, 5, 6>();
      dot<kFamily, 3, 5, 7>();
    }
  }
  release();
}

}  // namespace

constinit const kernel::Peak peak_bf16 = {
    .instruction = "tdpbf16ps",
    .isa = Isa::kAmx,
    .features = 0,
    .kind = kernel::PeakKind::kBf16,
    .operations = 2 * 16 * 16 * 32 * 4 * kUnroll,
    .run = run<kernel::Family::kBf16>,
};

constinit const kernel::Peak peak_s8 = {
    .instruction = "tdpbssd",
    .isa = Isa::kAmx,
    .features = 0,
    .kind = kernel::PeakKind::kInt8,
    .operations = 2 * 16 * 16 * 64 * 4 * kUnroll,
    .run = run<kernel::Family::kS8>,
};

}  // namespace megamoe::isa_amx
