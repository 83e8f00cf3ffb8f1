// Where an element of a matrix lies in the fractal (NZ) layouts.
#pragma once

#include <array>
#include <cstdint>

#include "megamoe/tensor.h"

namespace megamoe::format {

inline constexpr int64_t kFractalRows = 16;
inline constexpr int kFractalRowBits = 256;  // 32 bytes per inner row

/// Elements per inner row (C0) of a type in a layout; 0 where the layout is not defined for the type.
inline int64_t fractal_c0(DType dtype, Layout layout) {
  const int bits = dtype_bits(dtype);
  switch (layout) {
    case Layout::kFractalNz:
      return bits >= 4 && bits <= 32 ? kFractalRowBits / bits : 0;
    case Layout::kFractalNzC0_32:
      return bits == 4 ? 32 : 0;
    case Layout::kNd:
      return 0;
  }
  return 0;
}

/// One matrix of `rows` x `cols` stored as (ceil(cols / c0), ceil(rows / 16), 16, c0), zero padded. All
/// figures are elements; in 4-bit types element i is nibble i % 2 (low first) of byte i / 2.
struct Fractal {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t c0 = 0;

  constexpr int64_t row_tiles() const { return (rows + kFractalRows - 1) / kFractalRows; }
  constexpr int64_t col_tiles() const { return (cols + c0 - 1) / c0; }
  constexpr std::array<int64_t, 4> storage_shape() const {
    return {col_tiles(), row_tiles(), kFractalRows, c0};
  }
  constexpr int64_t elements() const { return col_tiles() * row_tiles() * kFractalRows * c0; }
  constexpr int64_t offset(int64_t r, int64_t c) const {
    return (c / c0) * (row_tiles() * kFractalRows * c0) + (r / kFractalRows) * (kFractalRows * c0) +
           (r % kFractalRows) * c0 + c % c0;
  }
};

}  // namespace megamoe::format
