// Every quantisation rule for one row, as the documents state it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::reference {

struct QuantisedRow {
  std::vector<uint8_t> codes;  ///< one per column; 4-bit codes in the low half
  DType scale_type = DType::kUndefined;
  std::vector<float> scales;         ///< of float32 scales, padding included
  std::vector<uint8_t> scale_bytes;  ///< of E8M0 scales, padding included
};

/// Arguments beside the row; `smooth` is empty or has one factor per column.
struct QuantiseArguments {
  std::vector<float> smooth;
  float scale = 1;
  float offset = 0;
};

/// Quantises the values of a row by the rule of a name. Values are exact in the type the row came in.
Result<QuantisedRow> quantise_row(std::string_view rule, const std::vector<float>& x,
                                  const QuantiseArguments& arguments = {});

/// Values of the codes of a row.
Result<std::vector<float>> dequantise_row(std::string_view rule, const QuantisedRow& row,
                                          const QuantiseArguments& arguments = {});

}  // namespace megamoe::reference
