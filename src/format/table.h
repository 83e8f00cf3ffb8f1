// The formats that hold real numbers: how their codes are read and written, and what the documents say of
// them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "megamoe/tensor.h"

namespace megamoe::format {

struct FormatInfo {
  DType dtype;
  const char* layout;  ///< bits from the top: "s eeee mmm, bias 7"
  const char* rounding;
  float (*decode)(uint32_t code);
  /// Nearest code of a float. Saturating: past the largest number becomes the largest, NaN becomes +0 where
  /// there is one. float32 keeps every value.
  uint32_t (*encode)(float value, bool saturate);
};

/// Every format with a value per code, in the order of formats.inc.
std::span<const FormatInfo> formats();
/// Null for types that hold no real numbers.
const FormatInfo* find_format(DType dtype);

/// Figures of a format, found by reading every code.
struct FormatFigures {
  double largest = 0;            ///< largest finite number
  int emax = 0;                  ///< its exponent
  double smallest = 0;           ///< smallest number above 0
  std::string infinities, nans;  ///< hexadecimal codes, "7c, fc" or "7d-7f, fd-ff"; empty without any
  std::string zeros;
};
FormatFigures figures(const FormatInfo& format);

}  // namespace megamoe::format
