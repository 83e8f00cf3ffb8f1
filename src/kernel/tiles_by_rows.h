// The tile functions of a kernel that reads a panel as codes, by rows and by where lines go.
#pragma once

#include "kernel/by_rows.h"
#include "kernel/k_loop.h"

namespace megamoe::kernel {

/// Of::tile<kRows, kLocality> is the function for `kRows` rows, 1 .. kMaxRows.
template <class Of, int kMaxRows>
struct TilesByRows {
  static void run(const Tile& t) {
    using enum Locality;
    (t.read_once ? kByRows<kOnce> : kByRows<kCaches>)[static_cast<size_t>(t.rows - 1)](t);
  }

 private:
  template <Locality kLocality>
  static constexpr auto kByRows = functions_by_rows<kMaxRows>([]<int kRows>() {
    return Of::template tile<kRows, kLocality>;
  });
};

}  // namespace megamoe::kernel
