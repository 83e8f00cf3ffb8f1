// Rows of codes with their scales, as tokens travel and as Linear2 reads them.
#pragma once

#include <cstdint>
#include <vector>

#include "megamoe/tensor.h"

namespace megamoe::reference {

/// Elements that share a scale in the MX formats.
inline constexpr int64_t kMxGroup = 32;
/// Groups of a row of `n`; the last one may be short.
inline int64_t mx_groups(int64_t n) {
  return (n + kMxGroup - 1) / kMxGroup;
}

/// How codes of a type are scaled.
enum class Scaling { kNone, kPerRow, kMx };
Scaling scaling_of(DType codes);

struct CodedRow {
  std::vector<float> codes;   ///< as numbers
  std::vector<float> scales;  ///< one of the row (1 where the type has none), or one per group
};

/// Codes of a row in a type: bfloat16 rounds the row, int8 has one scale, the others follow the MX floor
/// rule.
CodedRow encode(DType type, const std::vector<float>& row);

/// Value of element i of a row.
inline double value(const CodedRow& row, int64_t i) {
  const float scale = row.scales[row.scales.size() == 1 ? 0 : i / kMxGroup];
  return double{row.codes[i]} * double{scale};
}

}  // namespace megamoe::reference
