// Where the weights and scales of one expert lie in the caller's memory.
#include "pack/weight_matrix.h"

#include <bit>

#include "format/fractal.h"

namespace megamoe::pack {

WeightMatrix weight_matrix(const std::vector<TensorView>& tensors, bool k_last, int64_t expert) {
  const bool stacked = is_stacked(tensors);
  const TensorView& t = stacked ? tensors[0] : tensors[static_cast<size_t>(expert)];
  const int row_dim = t.dims - 2, column_dim = t.dims - 1;
  const int64_t rows = t.shape[row_dim], columns = t.shape[column_dim];

  // Steps of the matrix as stored, rows x columns.
  struct Axis {
    int64_t step, block, block_step;
  } row, column;
  int64_t expert_step;
  if (t.layout == Layout::kNd) {
    row = {t.strides[row_dim], rows, 0};
    column = {t.strides[column_dim], columns, 0};
    expert_step = stacked ? t.strides[0] : 0;
  } else {
    // Columns are cut into blocks of C0; a block holds all rows one after the other.
    const format::Fractal fractal{rows, columns, format::fractal_c0(t.dtype, t.layout)};
    row = {fractal.c0, rows, 0};
    column = {1, fractal.c0, fractal.offset(0, fractal.c0)};
    expert_step = stacked ? fractal.elements() : 0;
  }
  const Axis& k = k_last ? column : row;
  const Axis& n = k_last ? row : column;
  return {static_cast<const std::byte*>(t.data) + expert * expert_step * dtype_bits(t.dtype) / 8,
          k.step,
          n.step,
          k.block,
          n.block,
          k.block_step,
          n.block_step};
}

float channel_scale(const std::vector<TensorView>& scales, int64_t expert, int64_t column) {
  const bool stacked = scales.size() == 1 && scales[0].dims == 2;
  const TensorView& t = stacked ? scales[0] : scales[static_cast<size_t>(expert)];
  const int64_t index = stacked ? expert * t.strides[0] + column * t.strides[1] : column * t.strides[0];
  if (t.dtype == DType::kFloat32) return static_cast<const float*>(t.data)[index];
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint64_t*>(t.data)[index]));
}

uint8_t mx_scale(const std::vector<TensorView>& scales, int64_t expert, int64_t column, int64_t group) {
  const bool stacked = scales.size() == 1 && scales[0].dims == 4;
  const TensorView& t = stacked ? scales[0] : scales[static_cast<size_t>(expert)];
  const int64_t* const strides = t.strides + (stacked ? 1 : 0);
  const int64_t index = (stacked ? expert * t.strides[0] : 0) + column * strides[0] + group / 2 * strides[1] +
                        group % 2 * strides[2];
  return static_cast<const uint8_t*>(t.data)[index];
}

const std::byte* group_element(const std::vector<TensorView>& tensors, int64_t expert, int64_t row,
                               int64_t column) {
  const bool stacked = is_stacked(tensors);
  const TensorView& t = tensors[stacked ? 0 : static_cast<size_t>(expert)];
  const int64_t* strides = t.strides + (stacked ? 1 : 0);
  const int64_t at = (stacked ? expert * t.strides[0] : 0) + row * strides[0] + column * strides[1];
  return static_cast<const std::byte*>(t.data) + at * dtype_bits(t.dtype) / 8;
}

float channel_bias(const std::vector<TensorView>& biases, int64_t expert, int64_t column) {
  return channel_scale(biases, expert, column);
}

}  // namespace megamoe::pack
