// Reading of weights in every accepted layout; the matrix product.
#include "reference/linear.h"

#include <bit>

#include "format/bf16.h"
#include "format/fractal.h"
#include "reference/element.h"

namespace megamoe::reference {
namespace {

// The tensors of one argument: a stacked one, or one per expert.
Status check_count(const std::vector<TensorView>& tensors, const std::string& name, int64_t experts) {
  const int64_t count = static_cast<int64_t>(tensors.size());
  if (count == 1 || count == experts) return Status::ok();
  return Status(Code::kInvalidArgument, name + " has " + std::to_string(count) + " tensors: expected 1 or " +
                                            std::to_string(experts) + " (experts of this rank)");
}

// A single tensor is stacked unless it has no dimension for the expert.
bool is_stacked(const std::vector<TensorView>& tensors, int dims) {
  return tensors.size() == 1 && tensors[0].dims == dims;
}

std::string indexed(const std::string& name, size_t i, size_t count) {
  return count == 1 ? name : name + "[" + std::to_string(i) + "]";
}

Status check_layout(const TensorView& tensor, const std::string& name) {
  if (tensor.layout == Layout::kNd || tensor.layout == Layout::kFractalNz) return Status::ok();
  return Status(Code::kInvalidArgument, name + " has layout " + layout_name(tensor.layout) +
                                            ": expected ND or FRACTAL_NZ for " + dtype_name(tensor.dtype));
}

// Offset of element (r, c) of one expert's stored matrix.
int64_t matrix_offset(const TensorView& tensor, int64_t expert, int64_t r, int64_t c) {
  const int last = tensor.dims - 1;
  if (tensor.layout == Layout::kNd) {
    const int64_t base = tensor.dims == 3 ? expert * tensor.strides[0] : 0;
    return base + r * tensor.strides[last - 1] + c * tensor.strides[last];
  }
  const format::Fractal fractal{tensor.shape[last - 1], tensor.shape[last],
                                format::fractal_c0(tensor.dtype, tensor.layout)};
  return (tensor.dims == 3 ? expert * fractal.elements() : 0) + fractal.offset(r, c);
}

float read_weight(const TensorView& tensor, int64_t offset) {
  return tensor.dtype == DType::kInt8 ? static_cast<float>(element<int8_t>(tensor, offset))
                                      : format::bf16_to_float(element<uint16_t>(tensor, offset));
}

// uint64 scales hold the bits of a float32 in their lower half; the upper half has no meaning.
float read_scale(const TensorView& tensor, int64_t offset) {
  return tensor.dtype == DType::kFloat32
             ? element<float>(tensor, offset)
             : std::bit_cast<float>(static_cast<uint32_t>(element<uint64_t>(tensor, offset)));
}

// One list of matrices (k, n), all of the type of the first one of the layer.
Status check_matrices(const std::vector<TensorView>& tensors, const std::string& name,
                      const LinearWeights& weights, int64_t experts, int64_t k, int64_t n) {
  MEGAMOE_RETURN_IF_ERROR(check_count(tensors, name, experts));
  const int64_t rows = weights.k_last ? n : k;
  const int64_t cols = weights.k_last ? k : n;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    const std::string at = indexed(name, i, tensors.size());
    MEGAMOE_RETURN_IF_ERROR(check_type(tensor, at, {DType::kBFloat16, DType::kInt8}));
    MEGAMOE_RETURN_IF_ERROR(check_type(tensor, at, {weights.weight[0].dtype}));
    MEGAMOE_RETURN_IF_ERROR(check_layout(tensor, at));
    if (tensors.size() == 1 && (experts != 1 || tensor.dims == 3)) {
      MEGAMOE_RETURN_IF_ERROR(check_shape(tensor, at, {experts, rows, cols}));
    } else {
      MEGAMOE_RETURN_IF_ERROR(check_shape(tensor, at, {rows, cols}));
    }
  }
  return Status::ok();
}

// Puts one expert's stored matrix (k, n) into columns [first, first + n) of `matrix`.
void read_columns(const std::vector<TensorView>& tensors, bool k_last, int64_t expert, int64_t n,
                  int64_t first, ExpertMatrix& matrix) {
  const TensorView& tensor = tensors[is_stacked(tensors, 3) ? 0 : expert];
  for (int64_t i = 0; i < matrix.k; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = k_last ? matrix_offset(tensor, expert, j, i) : matrix_offset(tensor, expert, i, j);
      matrix.weight[i * matrix.n + first + j] = read_weight(tensor, at);
    }
  }
}

}  // namespace

Status check_linear(const LinearWeights& weights, int index, bool gated, int64_t experts, int64_t k,
                    int64_t n) {
  const std::string name = "weight" + std::to_string(index);
  if (weights.up.empty()) {
    MEGAMOE_RETURN_IF_ERROR(check_matrices(weights.weight, name, weights, experts, k, n));
  } else if (!gated) {
    return Status(Code::kInvalidArgument, name + ".up has " + std::to_string(weights.up.size()) +
                                              " tensors: expected none without a gated activation");
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_matrices(weights.weight, name, weights, experts, k, n / 2));
    MEGAMOE_RETURN_IF_ERROR(check_matrices(weights.up, name + ".up", weights, experts, k, n / 2));
  }

  const std::string scale_name = "weight_scales" + std::to_string(index);
  if (weights.weight[0].dtype == DType::kBFloat16) {
    if (weights.scale.empty()) return Status::ok();
    return Status(Code::kInvalidArgument, scale_name + " has " + std::to_string(weights.scale.size()) +
                                              " tensors: expected none for bfloat16 " + name);
  }
  MEGAMOE_RETURN_IF_ERROR(check_count(weights.scale, scale_name, experts));
  for (size_t i = 0; i < weights.scale.size(); ++i) {
    const TensorView& tensor = weights.scale[i];
    const std::string at = indexed(scale_name, i, weights.scale.size());
    MEGAMOE_RETURN_IF_ERROR(check_type(tensor, at, {DType::kUInt64, DType::kFloat32}));
    if (weights.scale.size() == 1 && (experts != 1 || tensor.dims == 2)) {
      MEGAMOE_RETURN_IF_ERROR(check_tensor(tensor, at, {experts, n}));
    } else {
      MEGAMOE_RETURN_IF_ERROR(check_tensor(tensor, at, {n}));
    }
  }
  return Status::ok();
}

ExpertMatrix read_expert(const LinearWeights& weights, int64_t expert, int64_t k, int64_t n) {
  ExpertMatrix matrix;
  matrix.k = k;
  matrix.n = n;
  matrix.weight.resize(static_cast<size_t>(k * n));
  if (weights.up.empty()) {
    read_columns(weights.weight, weights.k_last, expert, n, 0, matrix);
  } else {
    read_columns(weights.weight, weights.k_last, expert, n / 2, 0, matrix);
    read_columns(weights.up, weights.k_last, expert, n / 2, n / 2, matrix);
  }
  if (weights.scale.empty()) return matrix;
  matrix.scale.resize(static_cast<size_t>(n));
  const bool stacked_scale = is_stacked(weights.scale, 2);
  const TensorView& scale = weights.scale[stacked_scale ? 0 : expert];
  for (int64_t j = 0; j < n; ++j) {
    matrix.scale[j] = read_scale(scale, stacked_scale ? offset(scale, expert, j) : offset(scale, j));
  }
  return matrix;
}

std::vector<double> multiply(const std::vector<float>& row, const ExpertMatrix& matrix) {
  std::vector<double> sums(static_cast<size_t>(matrix.n), 0.0);
  for (int64_t k = 0; k < matrix.k; ++k) {
    const double a = row[k];
    const float* w = matrix.weight.data() + k * matrix.n;
    for (int64_t n = 0; n < matrix.n; ++n) sums[n] += a * double{w[n]};
  }
  return sums;
}

}  // namespace megamoe::reference
