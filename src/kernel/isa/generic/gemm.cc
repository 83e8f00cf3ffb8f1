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
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kBf16, pairs, kPasses);
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

/// Products and sums in float are exact as long as they are integers up to 2^24, which 1024 products are. No
/// integer multiplication of this width exists in the x86-64 baseline.
template <int kRows>
void tile_s8(const kernel::Tile& t) {
  constexpr int64_t kExactQuads = 1024 / 4;
  const int64_t quads = (t.k + 3) / 4;
  kernel::SpreadPrefetch<Level> prefetch(t, kernel::Family::kS8, quads, kPasses);
  for (int column = 0; column < kPanelColumns; column += kColumnsAtOnce) {
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const float* a = static_cast<const float*>(t.a);
    Int4 total[kRows][kVectors] = {};
    for (int64_t done = 0; done < quads; done += kExactQuads) {
      Float4 c[kRows][kVectors] = {};
      const int64_t count = quads - done < kExactQuads ? quads - done : kExactQuads;
      kernel::k_loop(
          prefetch, count, [&]() __attribute__((always_inline)) {
            for (int j = 0; j < kVectors; ++j) {
              const Uint4 w = load(weights + 4 * j);
              for (int i = 0; i < 4; ++i) {
                // Sign extension of byte i: up to the top, then down by an arithmetic shift.
                const Int4 code = reinterpret_cast<Int4>(w << (24 - 8 * i)) >> 24;
                const Float4 x = __builtin_convertvector(code, Float4);
                for (int r = 0; r < kRows; ++r) c[r][j] = c[r][j] + x * a[i * kRows + r];
              }
            }
            weights += kPanelColumns;
            a += 4 * kRows;
          });
      for (int r = 0; r < kRows; ++r) {
        for (int j = 0; j < kVectors; ++j) total[r][j] += __builtin_convertvector(c[r][j], Int4);
      }
    }
    int32_t* out = static_cast<int32_t*>(t.c) + column;
    for (int r = 0; r < kRows; ++r) std::memcpy(out + r * kPanelColumns, total[r], sizeof(total[r]));
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
    .packed_bytes = kernel::PackS8AsFloat<Level>::bytes,
    .pack_rows = kernel::PackS8AsFloat<Level>::pack,
    .tile = run_s8,
};

}  // namespace megamoe::isa_generic
