// Products with a scale per group of K: the tiles of a plain kernel group by group, each scaled and added in
// float. V is a float vector type of the calling level.
#pragma once

#include <algorithm>

#include "kernel/contract.h"
#include "kernel/pack_rows.h"

namespace megamoe::kernel {

/// C[rows][32] = (first ? 0 : C) + scales[col] * fl(T[row][col] * row scale), T float or int32.
template <class V, class Sum>
void add_scaled_group(const Sum* sums, int rows, const float* scales, const float* row_scales, bool first,
                      float* c) {
  for (int r = 0; r < rows; ++r) {
    const V factor = V::set(row_scales == nullptr ? 1.0f : row_scales[r]);
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      const int at = r * kPanelColumns + column;
      V value = V::load_converted(sums + at);
      // A multiply-add: multiplications that end in subnormal numbers are several times slower.
      if (row_scales != nullptr) value = V::fma(value, factor, V::set(-0.0f));
      V::store(c + at, V::fma(value, V::load(scales + column), first ? V::set(0.0f) : V::load(c + at)));
    }
  }
}

/// The group kernel over `kGemm`, for tiles of up to kRows rows. A packed tile is for each group one packed
/// tile of kGemm and the row scales.
template <class V, const Gemm& kGemm, class Sum, int kRows>
struct GroupTile {
  static size_t bytes(int rows, int64_t k) {
    size_t most = 0;
    for (const int64_t group : kGroupSizes) {
      most = std::max(most, static_cast<size_t>(groups_of(k, group)) * stride(rows, group));
    }
    return most;
  }
  /// Bytes of a group, and where the row scales stand among them.
  static size_t stride(int rows, int64_t group) {
    return scales_at(rows, group) + round_to_cache_line(static_cast<size_t>(rows) * sizeof(float));
  }
  static size_t scales_at(int rows, int64_t group) { return kGemm.packed_bytes(rows, group); }

  static void pack(const PackRows& p) {
    auto* out = static_cast<std::byte*>(p.out);
    const auto* codes = static_cast<const std::byte*>(p.codes);
    const int64_t groups = groups_of(p.k, p.group);
    for (int64_t g = 0; g < groups; ++g, out += stride(p.rows, p.group)) {
      const int64_t begin = g * p.group;
      PackRows part{};
      part.codes = codes + begin * 4 / k_per_dword(kGemm.family);
      part.row_bytes = p.row_bytes;
      part.rows = p.rows;
      part.k = std::min(p.group, p.k - begin);
      part.out = out;
      kGemm.pack_rows(part);
      auto* const scales = reinterpret_cast<float*>(out + scales_at(p.rows, p.group));
      for (int r = 0; r < p.rows && p.scales != nullptr; ++r) {
        scales[r] = reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(p.scales) +
                                                   r * p.scale_bytes)[g];
      }
    }
  }

  static void run(const Tile& t) {
    const auto* a = static_cast<const std::byte*>(t.a) +
                    static_cast<size_t>(t.k_begin / t.group) * stride(t.rows, t.group);
    const int64_t groups = groups_of(t.k, t.group);
    alignas(64) Sum sums[kRows * kPanelColumns];
    for (int64_t g = 0; g < groups; ++g, a += stride(t.rows, t.group)) {
      Tile part{};
      part.a = a;
      part.rows = t.rows;
      part.k = std::min(t.group, t.k - g * t.group);
      part.panel = static_cast<const std::byte*>(t.panel) + panel_bytes(kGemm.family, g * t.group);
      part.column_sums = t.column_sums == nullptr ? nullptr : t.column_sums + g * kPanelColumns;
      part.c = sums;
      // Strips are made in the cache: without an announcement there is nothing to bring in.
      const bool announced = t.prefetch != nullptr;
      const int64_t from = announced ? t.prefetch_bytes * g / groups : 0;
      part.prefetch = announced ? t.prefetch + from : static_cast<const std::byte*>(t.panel);
      part.prefetch_bytes = announced ? t.prefetch_bytes * (g + 1) / groups - from : 0;
      kGemm.tile(part);
      const auto* const row_scales =
          t.row_scaled ? reinterpret_cast<const float*>(a + scales_at(t.rows, t.group)) : nullptr;
      add_scaled_group<V>(sums, t.rows, t.group_scales + g * kPanelColumns, row_scales,
                          g == 0 && !t.accumulate, static_cast<float*>(t.c));
    }
  }
};

}  // namespace megamoe::kernel
