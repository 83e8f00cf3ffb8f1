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
enum class Scaling { kNone, kPerRow, kMx, kGroup128 };
/// Scaling of a type of codes where nothing else says it.
Scaling scaling_of(DType codes);
/// Elements of a row that share a scale, 0 = all.
int64_t group_of(Scaling scaling);

struct CodedRow {
  std::vector<float> codes;   ///< as numbers
  std::vector<float> scales;  ///< one of the row (1 where the type has none), or one per group
  int64_t group = 0;          ///< elements that share a scale, 0 = all
};

/// Codes of a row in a type: kNone rounds the row to bfloat16, kPerRow is int8 with one scale, kMx follows
/// the MX floor rule and kGroup128 the rule fp8_block128.
CodedRow encode(Scaling scaling, DType type, const std::vector<float>& row);
/// With the scaling that the type has where nothing else says it.
CodedRow encode(DType type, const std::vector<float>& row);

/// Value of element i of a row.
inline double value(const CodedRow& row, int64_t i) {
  const float scale = row.scales[row.group == 0 ? 0 : i / row.group];
  return double{row.codes[i]} * double{scale};
}

}  // namespace megamoe::reference
