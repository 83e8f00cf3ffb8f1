// Where the weights and scales of one expert lie in the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "megamoe/mega_moe.h"

namespace megamoe::pack {

/// One K x N matrix. Its memory is a grid of blocks; inside a block both steps are constant. ND has one
/// block.
struct WeightMatrix {
  const std::byte* data = nullptr;
  int64_t k_step = 0;  ///< elements (nibbles of 4-bit types) from (k, n) to (k + 1, n) inside a block
  int64_t n_step = 0;
  int64_t k_block = 0;       ///< k per block; a multiple of 4 unless it covers all of K
  int64_t n_block = 0;       ///< columns per block
  int64_t k_block_step = 0;  ///< elements from one block to the next along K
  int64_t n_block_step = 0;

  int64_t offset(int64_t k, int64_t n) const {
    return k / k_block * k_block_step + k % k_block * k_step + n / n_block * n_block_step +
           n % n_block * n_step;
  }
};

/// Whether a list holds one stacked tensor and not one tensor per expert.
inline bool is_stacked(const std::vector<TensorView>& tensors) {
  return tensors.size() == 1 && tensors[0].dims == 3;
}
inline int64_t experts_of(const std::vector<TensorView>& tensors) {
  return is_stacked(tensors) ? tensors[0].shape[0] : static_cast<int64_t>(tensors.size());
}

/// Matrix of one expert in a list that holds one stacked tensor or one tensor per expert.
WeightMatrix weight_matrix(const std::vector<TensorView>& tensors, bool k_last, int64_t expert);

/// Float32 scale of one expert's column, from float32 or from the low half of uint64.
float channel_scale(const std::vector<TensorView>& scales, int64_t expert, int64_t column);

/// E8M0 byte of one expert's column for k in [32 group, 32 group + 32): scales (E, N, ceil(K / 64), 2) or a
/// list of (N, ceil(K / 64), 2), read flat along the last two dimensions.
uint8_t mx_scale(const std::vector<TensorView>& scales, int64_t expert, int64_t column, int64_t group);

/// Columns and k of a block of ScaleKind::kBlocks.
inline constexpr int64_t kScaleBlock = 128;

/// Address of element (row, column) of one expert in scales or zero points (E, rows, columns) or E x (rows,
/// columns).
const std::byte* group_element(const std::vector<TensorView>& tensors, int64_t expert, int64_t row,
                               int64_t column);

/// Float32 bias of one expert's column: (E, N) or a list of (N,).
float channel_bias(const std::vector<TensorView>& biases, int64_t expert, int64_t column);

}  // namespace megamoe::pack
