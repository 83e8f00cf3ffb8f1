// Calls against calls: pairs that take turns, on one layer or on two.
#pragma once

#include <vector>

#include "cli/layer_job.h"
#include "cli/tune_measure.h"

namespace megamoe::cli {

/// A call on a batch of one of the layers measured.
struct Side {
  size_t layer = 0, batch = 0;
};
struct Comparison {
  Side candidate, fallback;
};

/// Packs every layer once and times the two calls of each comparison `repeats` times in alternating order.
/// Layers of equal settings share a buffer and its threads.
Result<std::vector<Pairs>> measure_comparisons(const std::vector<LayerJob>& layers,
                                               const std::vector<Comparison>& comparisons,
                                               const CommonOptions& common, int64_t repeats);

}  // namespace megamoe::cli
