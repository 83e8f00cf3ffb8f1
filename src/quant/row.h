// The arguments of a quantiser for one row and of its inverse.
#pragma once

#include <cstdint>

#include "megamoe/tensor.h"

namespace megamoe::quant {

/// A row of values to quantise. `codes` gets RuleInfo::code_bytes(n) bytes and `scales` scale_bytes(n), the
/// padding included.
struct QuantRow {
  const void* x;  ///< n values of type `input`, without gaps
  DType input;    ///< bfloat16, float16 or float32; the caller checks that the
                  ///< rule accepts it
  int64_t n;
  const float* smooth;  ///< n factors of the columns, or null; rules that take kSmooth
  float scale;          ///< rules that take kScale
  float offset;         ///< rules that take kOffset
  void* codes;
  void* scales;  ///< aligned to its type; not touched by rules without scales
  /// The row of n values that comes next: rules that read a row twice bring it into the cache meanwhile.
  /// Never read.
  const void* next = nullptr;
};

/// A row of codes to turn into float values; the fields are those of QuantRow.
struct DequantRow {
  const void* codes;
  const void* scales;
  int64_t n;
  float scale;
  float offset;
  float* out;
};

}  // namespace megamoe::quant
