// bf16 tiles by vdpbf16ps: 14 rows x 32 columns. The instruction treats subnormal inputs and sums as zero.
#include "kernel/contract.h"
#include "kernel/isa/avx512_bf16/coded_tile.h"
#include "kernel/isa/avx512_bf16/decode.h"
#include "kernel/isa/avx512_bf16/sums.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx512_bf16 {
namespace {

struct Level;

constexpr int kPairedRows = 4;
constexpr int kPairedNibbleRows = 5;
/// Least rows of one of several tiles.
constexpr int kPassingRows = (kTallestRows + 1) / 2;

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_14x32_avx512_bf16",
    .isa = Isa::kAvx512Bf16,
    .family = kernel::Family::kBf16,
    .max_rows = kTallestRows,
    .packed_bytes = kernel::PackBf16Pairs<Level>::bytes,
    .pack_rows = kernel::PackBf16Pairs<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kBf16, Bf16Sums, kTallestRows, kTallestRows>::run,
    .decode = {nullptr, decode_mx<E4M3Codes>, decode_mx<E5M2Codes>, decode_mx<E2M1Codes>},
    .coded_rows = {0, kTallestRows, kTallestRows, kTallestRows},
    .paired_rows = {0, kPairedRows, kPairedRows, kPairedNibbleRows},
    .coded_tile = {nullptr,
                   CodedTiles<Level, E4M3Codes, Bf16Sums, kTallestRows, kPairedRows, kPassingRows>::run,
                   CodedTiles<Level, E5M2Codes, Bf16Sums, kTallestRows, kPairedRows, kPassingRows>::run,
                   CodedTiles<Level, E2M1Codes, Bf16Sums, kTallestRows, kPairedNibbleRows>::run},
    .kept_rows = {0, kTallestRows + 1, kTallestRows + 1, 0},
    .stream = {{6 << 10, 3 << 10}},
};

}  // namespace megamoe::isa_avx512_bf16
