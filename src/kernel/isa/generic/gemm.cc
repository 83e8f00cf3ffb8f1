// Matrix tiles of the generic level: compiler vectors of 16 bytes, which every architecture has or imitates.
#include <cstring>

#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_generic {
namespace {

using kernel::kPanelColumns;
struct Level;
using Float4 __attribute__((vector_size(16))) = float;
using Uint4 __attribute__((vector_size(16))) = uint32_t;
using Int4 __attribute__((vector_size(16))) = int32_t;

constexpr int kMaxRows = 4;
constexpr int kColumnsAtOnce = 8;  // accumulators of 4 rows x 8 columns stay in 16 registers
constexpr int kVectors = kColumnsAtOnce / 4;
constexpr int kPasses = kPanelColumns / kColumnsAtOnce;

Uint4 load(const uint32_t* p) {
  Uint4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <int kRows>
void tile_bf16(const kernel::Tile& t) {
  const int64_t pairs = (t.k + 1) / 2;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::panel_bytes(kernel::Family::kBf16, t.k), pairs * kPasses);
  for (int column = 0; column < kPanelColumns; column += kColumnsAtOnce) {
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const float* a = static_cast<const float*>(t.a);
    Float4 c[kRows][kVectors] = {};
    kernel::k_loop(
        prefetch, pairs, [&]() __attribute__((always_inline)) {
          for (int j = 0; j < kVectors; ++j) {
            const Uint4 w = load(weights + 4 * j);
            const Float4 even = reinterpret_cast<Float4>(w << 16);
            const Float4 odd = reinterpret_cast<Float4>(w & 0xffff0000u);
            for (int r = 0; r < kRows; ++r) {
              c[r][j] = c[r][j] + even * a[r];
              c[r][j] = c[r][j] + odd * a[kRows + r];
            }
          }
          weights += kPanelColumns;
          a += 2 * kRows;
        });
    float* out = static_cast<float*>(t.c) + column;
    for (int r = 0; r < kRows; ++r) std::memcpy(out + r * kPanelColumns, c[r], sizeof(c[r]));
  }
}

template <int kRows>
void tile_s8(const kernel::Tile& t) {
  const int64_t quads = (t.k + 3) / 4;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::panel_bytes(kernel::Family::kS8, t.k), quads * kPasses);
  for (int column = 0; column < kPanelColumns; column += kColumnsAtOnce) {
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const int16_t* a = static_cast<const int16_t*>(t.a);
    Int4 c[kRows][kVectors] = {};
    kernel::k_loop(
        prefetch, quads, [&]() __attribute__((always_inline)) {
          for (int j = 0; j < kVectors; ++j) {
            const Uint4 w = load(weights + 4 * j);
            // Sign extension of each byte: up to the top, then down by an arithmetic shift.
            const Int4 w0 = reinterpret_cast<Int4>(w << 24) >> 24;
            const Int4 w1 = reinterpret_cast<Int4>(w << 16) >> 24;
            const Int4 w2 = reinterpret_cast<Int4>(w << 8) >> 24;
            const Int4 w3 = reinterpret_cast<Int4>(w) >> 24;
            for (int r = 0; r < kRows; ++r) {
              const int16_t* even = a + 2 * r;  // k 0 and 2
              const int16_t* odd = even + 2 * kRows;
              c[r][j] +=
                  w0 * int32_t{even[0]} + w1 * int32_t{odd[0]} + w2 * int32_t{even[1]} + w3 * int32_t{odd[1]};
            }
          }
          weights += kPanelColumns;
          a += 4 * kRows;
        });
    int32_t* out = static_cast<int32_t*>(t.c) + column;
    for (int r = 0; r < kRows; ++r) std::memcpy(out + r * kPanelColumns, c[r], sizeof(c[r]));
  }
}

using TileFunction = void (*)(const kernel::Tile&);
constexpr TileFunction kBf16Tiles[kMaxRows] = {tile_bf16<1>, tile_bf16<2>, tile_bf16<3>, tile_bf16<4>};
constexpr TileFunction kS8Tiles[kMaxRows] = {tile_s8<1>, tile_s8<2>, tile_s8<3>, tile_s8<4>};

void run_bf16(const kernel::Tile& t) {
  kBf16Tiles[t.rows - 1](t);
}
void run_s8(const kernel::Tile& t) {
  kS8Tiles[t.rows - 1](t);
}

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_4x32_generic",
    .isa = Isa::kGeneric,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16AsFloat<Level>::bytes,
    .pack_rows = kernel::PackBf16AsFloat<Level>::pack,
    .tile = run_bf16,
};
constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_4x32_generic",
    .isa = Isa::kGeneric,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsS16<Level>::bytes,
    .pack_rows = kernel::PackS8AsS16<Level>::pack,
    .tile = run_s8,
};

}  // namespace megamoe::isa_generic
