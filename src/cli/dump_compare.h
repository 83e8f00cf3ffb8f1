// Compares two tensors of dumps bit by bit and says how far apart the values are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "megamoe/tensor.h"

namespace megamoe::cli {

/// An element that differs: where, and what stands there on either side.
struct ElementDifference {
  int64_t row = 0, column = 0;
  std::string a, b;
  /// Representable numbers of the format from one to the other; absent where one is NaN.
  std::optional<int64_t> ulps;
};

struct TensorDifference {
  int64_t elements = 0;
  int64_t differing = 0;
  int64_t most_ulps = 0;  ///< of the differing elements that are numbers on both sides
  int64_t nans = 0;       ///< differing elements that are NaN on one side
  std::optional<ElementDifference> first;
};

/// Both (rows, columns), or (rows,), of one type and contiguous. NaN equals NaN. Elements at most `ulps`
/// apart count as equal; without it only equal bits do.
TensorDifference compare_tensors(const TensorView& a, const TensorView& b, std::optional<int64_t> ulps);

}  // namespace megamoe::cli
