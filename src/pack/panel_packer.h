// Weights of any layout -> panels: one panel of one expert at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megamoe/mega_moe.h"
#include "pack/panel_source.h"
#include "pack/weight_matrix.h"
#include "pack/weight_types.h"

namespace megamoe::pack {

/// Packs panels of checked weights. Views the caller's tensors; any number of threads may use it at once.
class PanelPacker {
 public:
  PanelPacker(const LinearWeights& weights, const Geometry& geometry)
      : weights_(with_nibbles(weights)), geometry_(geometry) {}

  /// Writes the dwords of k in [k_begin, k_end) of a panel that starts at `panel`, and with channel
  /// scales adds to `sums` [32], which is cleared at k_begin = 0. Both ends are multiples of 4, or k_end is
  /// K. Missing columns and the k past K become zero. Coded weights are packed whole: k_begin = 0, k_end = K.
  void pack(int64_t expert, int64_t index, int64_t k_begin, int64_t k_end, std::byte* panel,
            int32_t* sums) const;
  /// Writes the 32 channel scales of a panel, 0 for missing columns.
  void pack_scales(int64_t expert, int64_t index, float* scales) const;

  /// Writes the 32 biases of a panel, 0 for missing columns. The int4 scheme splits an activation q into 16
  /// hi + lo + 8, and its bias makes up for the 8: with the whole q in the product, 8 x column sum x scale
  /// goes out again.
  void pack_bias(int64_t expert, int64_t index, const int32_t* sums, float* bias) const;
  /// Writes the 32 biases that are added after all scales, 0 for missing columns.
  void pack_added_bias(int64_t expert, int64_t index, float* bias) const;

  /// True where neighbouring columns are neighbours in memory, so that several panels at a time read whole
  /// rows.
  bool columns_contiguous() const;

 private:
  LinearWeights weights_;
  Geometry geometry_;
};

}  // namespace megamoe::pack
