// The product of one register tile: the loop that all levels and families share. What differs between them is
// an accumulator type, made by a template over the number of rows:
//
//   static constexpr int kColumns     columns of one pass; a panel of 32 is read in 32 / kColumns passes
//   static constexpr int kOperands    operands of a row for one dword of k
//   using Operand                     what pack_rows wrote, [dword][kOperands][rows]
//   start(tile, column)               values before the first product
//   load(c), store(c)                 from and to C, `c` pointing at its first column
//   step(weights, a)                  adds the products of one dword of k
//   static constexpr int64_t kMostSteps and flush(): only where `step` must be interrupted so often
#pragma once

#include "kernel/by_rows.h"
#include "kernel/k_loop.h"

namespace megamoe::kernel {

/// How a tile announces weights: those it was given, with their locality, or its panel as a stream.
enum class Announce { kCaches, kOnce, kStream };

template <class Level, Family kFamily, template <int> class Accumulators, int kRows, Announce kAnnounce>
void tile_product(const Tile& t) {
  using Sums = Accumulators<kRows>;
  constexpr int kPasses = kPanelColumns / Sums::kColumns;
  constexpr int kPack = k_per_dword(kFamily);
  constexpr bool kStreams = kAnnounce == Announce::kStream;
  static_assert(!kStreams || kPasses == 1, "a stream is read once");
  const int64_t steps = (t.k + kPack - 1) / kPack;
  auto prefetch = [&] {
    if constexpr (kStreams) {
      return NoPrefetch{};
    } else {
      constexpr auto kLocality = kAnnounce == Announce::kOnce ? Locality::kOnce : Locality::kCaches;
      return SpreadPrefetch<Level, kLocality>(t, steps, kPasses);
    }
  }();
  for (int column = 0; column < kPanelColumns; column += Sums::kColumns) {
    const uint32_t* weights = static_cast<const uint32_t*>(t.panel) + column;
    const auto* a =
        static_cast<const typename Sums::Operand*>(t.a) + t.k_begin / kPack * Sums::kOperands * kRows;
    uint32_t* const c = static_cast<uint32_t*>(t.c) + column;
    Sums sums;
    if (t.accumulate) {
      sums.load(c);
    } else {
      sums.start(t, column);
    }
    [[maybe_unused]] int64_t distance = 0;
    const auto step = [&]() __attribute__((always_inline)) {
      sums.step(weights, a);
      if constexpr (kStreams) StreamAhead::announce(weights, distance);
      weights += kPanelColumns;
      a += Sums::kOperands * kRows;
    };
    if constexpr (kStreams) {
      for (const StreamAhead::Part& part : StreamAhead(t, steps)) {
        distance = part.distance;
        k_loop(prefetch, part.rows, step);
      }
    } else if constexpr (requires { Sums::kMostSteps; }) {
      for (int64_t done = 0; done < steps; done += Sums::kMostSteps) {
        k_loop(prefetch, steps - done < Sums::kMostSteps ? steps - done : Sums::kMostSteps, step);
        sums.flush();
      }
    } else {
      k_loop(prefetch, steps, step);
    }
    sums.store(c);
  }
}

/// The tile functions of one kernel for 1 .. kMaxRows rows; up to kStreamRows rows they take Tile::ahead.
template <class Level, Family kFamily, template <int> class Accumulators, int kMaxRows, int kStreamRows = 0>
struct TileFunctions {
  static void run(const Tile& t) {
    if constexpr (kStreamRows > 0) {
      if (t.ahead > 0 && t.rows <= kStreamRows) return kByRows<Announce::kStream, kStreamRows>[t.rows - 1](t);
    }
    (t.read_once ? kByRows<Announce::kOnce> : kByRows<Announce::kCaches>)[t.rows - 1](t);
  }

 private:
  template <Announce kAnnounce, int kMost = kMaxRows>
  static constexpr auto kByRows = functions_by_rows<kMost>([]<int kRows>() {
    return &tile_product<Level, kFamily, Accumulators, kRows, kAnnounce>;
  });
};

}  // namespace megamoe::kernel
