// Weights of one linear layer as plain numbers, and products with them summed in double.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megamoe/mega_moe.h"
#include "megamoe/status.h"

namespace megamoe::reference {

/// Checks weights and scales of `experts` matrices (k, n). `index` is 1 or 2: "weight1", "weight_scales1".
/// Only a `gated` layer may have its up columns in tensors of their own.
Status check_linear(const LinearWeights& weights, int index, bool gated, int64_t experts, int64_t k,
                    int64_t n);

/// One expert's matrix: weight (k, n) row-major whatever the layout it came from, and the scale of each
/// column.
struct ExpertMatrix {
  int64_t k = 0;
  int64_t n = 0;
  std::vector<float> weight;  ///< codes as numbers
  std::vector<float> scale;   ///< (n,), empty where the type has none
};

/// The matrix of one expert of checked weights.
ExpertMatrix read_expert(const LinearWeights& weights, int64_t expert, int64_t k, int64_t n);

/// sum_k row[k] * weight[k][n] in double for each n; exact where both are int8 codes.
std::vector<double> multiply(const std::vector<float>& row, const ExpertMatrix& matrix);

}  // namespace megamoe::reference
