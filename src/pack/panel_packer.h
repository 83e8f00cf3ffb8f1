// Weights of any layout -> panels: one panel of one expert at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megamoe/mega_moe.h"
#include "pack/panel_source.h"
#include "pack/weight_matrix.h"

namespace megamoe::pack {

/// Packs panels of checked weights. Views the caller's tensors; any number of threads may use it at once.
class PanelPacker {
 public:
  PanelPacker(const LinearWeights& weights, const Geometry& geometry)
      : weights_(weights), geometry_(geometry) {}

  /// Writes the dwords of k in [k_begin, k_end) of a panel that starts at `panel`, and with the s8 family
  /// adds to `sums` [32], which is cleared at k_begin = 0. Both ends are multiples of 4, or k_end is K.
  /// Missing columns and the k past K become zero.
  void pack(int64_t expert, int64_t index, int64_t k_begin, int64_t k_end, std::byte* panel,
            int32_t* sums) const;
  /// Writes the 32 channel scales of a panel, 0 for missing columns.
  void pack_scales(int64_t expert, int64_t index, float* scales) const;

  bool has_scales() const { return !weights_.scale.empty(); }
  /// True where neighbouring columns are neighbours in memory, so that several panels at a time read whole
  /// rows.
  bool columns_contiguous() const;

 private:
  LinearWeights weights_;
  Geometry geometry_;
};

}  // namespace megamoe::pack
