// Products by way of short strips, for what a tile that reads stored codes does not take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "kernel/contract.h"

namespace megamoe::kernel {

/// The tile function of a kernel.
template <const Gemm& kGemm>
struct PlainTile {
  static void run(const Tile& t) { kGemm.tile(t); }
};

/// The whole of K of panel number `panel`, `step` of K at a time: a group, or kRangeStep for codes without
/// groups. `Multiply::run` multiplies a strip; its type keeps the copies of the levels apart.
template <class Multiply>
[[gnu::noinline]] void multiply_by_strips(const Tile& tile, WeightCode code,
                                          void (*decode)(const DecodePanel&), int64_t step, int panel) {
  constexpr int64_t kMost =
      std::max(kRangeStep, *std::max_element(std::begin(kGroupSizes), std::end(kGroupSizes)));
  alignas(64) std::byte strip[panel_bytes(Family::kBf16, kMost)];
  alignas(64) float scales[kPanelColumns];
  Tile t = tile;
  const int64_t before = panel * stored_panel_bytes(code, Family::kBf16, t.k, t.form);
  DecodePanel d{static_cast<const std::byte*>(t.panel) + before, 0, strip, t.form, scales};
  t.panel = strip;
  t.c = static_cast<float*>(t.c) + panel * t.rows * kPanelColumns;
  t.group_scales = scales;
  t.prefetch = strip;
  t.prefetch_bytes = 0;
  for (; t.k_begin < tile.k; t.k_begin += step) {
    d.k_begin = t.k_begin;
    d.k = t.k = std::min(step, tile.k - t.k_begin);
    t.accumulate = t.k_begin > 0;
    decode(d);
    Multiply::run(t);
  }
}

}  // namespace megamoe::kernel
