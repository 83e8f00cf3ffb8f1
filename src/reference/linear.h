// One linear layer: its weights as plain numbers, and rows through it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megamoe/mega_moe.h"
#include "megamoe/status.h"
#include "reference/coded_row.h"
#include "reference/scenario.h"

namespace megamoe::reference {

/// What a layer must be.
struct LinearForm {
  std::string prefix;  ///< before the names of its arguments: "" or "shared_"
  int index;           ///< 1 or 2: "weight1", "weight_scales1", "bias1"
  bool gated;          ///< may have its up columns in tensors of their own
  int64_t experts;
  int64_t k;
  int64_t n;
};

/// Checks weights, scales and biases.
Status check_linear(const LinearWeights& weights, const Scenario& scenario, const LinearForm& form);

/// One expert's matrix (k, n), row-major whatever the layout it came from. Weights with scales of groups or
/// blocks are values, with the scales in them; other weights are codes.
struct ExpertMatrix {
  int64_t k = 0;
  int64_t n = 0;
  std::vector<double> weight;
  std::vector<float> scale;  ///< (n,), empty where there is none per column
  std::vector<float> bias;   ///< (n,), or empty
  std::vector<float> added;  ///< (n,), or empty: added after all scales where `bias` is not
};

/// The matrix of one expert of checked weights.
ExpertMatrix read_expert(const LinearWeights& weights, const Scenario& scenario, int64_t expert, int64_t k,
                         int64_t n);

/// A row through one expert's matrix in float32, before any rounding to bfloat16. Products are summed in
/// double. An additive bias counts `bias_weight` times.
std::vector<float> linear(const Scenario& scenario, const CodedRow& row, const ExpertMatrix& matrix,
                          float bias_weight);

}  // namespace megamoe::reference
