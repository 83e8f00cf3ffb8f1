// Comparison of a result with what a test case expects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/case_file.h"

namespace megamoe::cli {

struct CompareResult {
  bool pass = false;
  int64_t differing = 0;  ///< elements that are not the same
  int64_t first = -1;     ///< storage index of the first difference that breaks the limits, -1 without one
  double rel_fro = 0;     ///< |got - want|_F / |want|_F; tolerance only
  double max_abs = 0;     ///< largest difference; tolerance only
  std::string message;    ///< "y.r0[3][17] = 1.5: expected 1.25 (...)"; empty when equal bit for bit
};

/// Compares by the tolerance of `expected`. NaN and infinity must stand at the same places and are left out
/// of the figures.
CompareResult compare(const CaseTensor& expected, const std::vector<std::byte>& got);

}  // namespace megamoe::cli
