// The product of a tile with a stored panel of int4 codes: the loop of kernel/tile.h over dwords of eight k.
//
// Beside what kernel/tile.h asks of an accumulator type:
//   start_codes(tile, column)    values before the first product of codes
//   step_codes(codes, a)         adds the products of one dword of codes: of two dwords of k
//   step_last_codes(codes, a)    of the first of both alone, where K ends there
//   end_codes()                  what the accumulators need before they are stored
#pragma once

#include "kernel/k_loop.h"
#include "kernel/tiles_by_rows.h"

namespace megamoe::isa_avx2 {

template <class Level, class Sums, kernel::Locality kLocality>
void tile_int4(const kernel::Tile& t) {
  constexpr int kStep = Sums::kOperands * Sums::kRowCount;
  const int64_t rows = (t.k + 3) / 4;  // dwords of k
  kernel::SpreadPrefetch<Level, kLocality> prefetch(t, (t.k + 7) / 8 * kernel::kPrefetchStride,
                                                    kernel::kPanelColumns / Sums::kColumns);
  for (int column = 0; column < kernel::kPanelColumns; column += Sums::kColumns) {
    const uint32_t* codes = static_cast<const uint32_t*>(t.panel) + column;
    const auto* a = static_cast<const typename Sums::Operand*>(t.a);
    Sums sums;
    sums.start_codes(t, column);
    for (int64_t i = 0; i < rows / 2; ++i) {
      prefetch.step();
      sums.step_codes(codes, a);
      codes += kernel::kPanelColumns;
      a += 2 * kStep;
    }
    if (rows % 2 != 0) {
      prefetch.step();
      sums.step_last_codes(codes, a);
    }
    sums.end_codes();
    sums.store(static_cast<int32_t*>(t.c) + column);
  }
}

template <class Level, template <int> class Sums>
struct Int4Tile {
  template <int kRows, kernel::Locality kLocality>
  static constexpr auto tile = &tile_int4<Level, Sums<kRows>, kLocality>;
};

/// The functions for 1 .. kMaxRows rows.
template <class Level, template <int> class Sums, int kMaxRows>
using Int4Tiles = kernel::TilesByRows<Int4Tile<Level, Sums>, kMaxRows>;

}  // namespace megamoe::isa_avx2
