// Reading of weights in every accepted layout; the matrix product with its scales and biases.
#include "reference/linear.h"

#include <cmath>

#include "format/fractal.h"
#include "reference/element.h"
#include "reference/number.h"

namespace megamoe::reference {
namespace {

constexpr int64_t kCodesPerWord = 8;  // int4 in an int32
constexpr int64_t kBlock = 128;       // columns and k that share a scale

// int32 words seen as the int4 codes they hold; the bytes are the same in every layout.
TensorView as_codes(TensorView tensor) {
  if (tensor.dtype != DType::kInt32) return tensor;
  tensor.dtype = DType::kInt4;
  tensor.shape[tensor.dims - 1] *= kCodesPerWord;
  for (int d = 0; d + 1 < tensor.dims; ++d) tensor.strides[d] *= kCodesPerWord;
  return tensor;
}

// The tensors of one argument: a stacked one, or one per expert.
Status check_count(const std::vector<TensorView>& tensors, const std::string& name, int64_t experts) {
  const int64_t count = static_cast<int64_t>(tensors.size());
  if (count == 1 || count == experts) return Status::ok();
  return Status(Code::kInvalidArgument, name + " has " + std::to_string(count) + " tensors: expected 1 or " +
                                            std::to_string(experts) + " (experts of this rank)");
}

// A single tensor is stacked unless it has no dimension for the expert.
bool is_stacked(const std::vector<TensorView>& tensors, int dims_of_one) {
  return tensors.size() == 1 && tensors[0].dims == dims_of_one + 1;
}

std::string indexed(const std::string& name, size_t i, size_t count) {
  return count == 1 ? name : name + "[" + std::to_string(i) + "]";
}

// Shape of tensor i of a list: `shape`, with the experts in front where it is stacked.
Status check_shapes(const std::vector<TensorView>& tensors, const std::string& at, size_t i, int64_t experts,
                    std::vector<int64_t> shape) {
  const bool one = tensors.size() == 1;
  if (one && (experts != 1 || tensors[0].dims == static_cast<int>(shape.size()) + 1)) {
    shape.insert(shape.begin(), experts);
  }
  return check_shape(tensors[i], at, shape);
}

Status check_layout(const TensorView& tensor, const std::string& name) {
  if (tensor.layout == Layout::kNd || tensor.layout == Layout::kFractalNz) return Status::ok();
  const bool narrow = tensor.dtype == DType::kFloat4E2M1;
  if (narrow && tensor.layout == Layout::kFractalNzC0_32) return Status::ok();
  return Status(Code::kInvalidArgument, name + " has layout " + layout_name(tensor.layout) + ": expected ND" +
                                            (narrow ? ", FRACTAL_NZ or FRACTAL_NZ_C0_32" : " or FRACTAL_NZ") +
                                            " for " + dtype_name(tensor.dtype));
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

// One list of matrices (k, n).
Status check_matrices(const std::vector<TensorView>& tensors, const std::string& name, bool k_last,
                      const Scenario& scenario, int64_t experts, int64_t k, int64_t n) {
  MEGAMOE_RETURN_IF_ERROR(check_count(tensors, name, experts));
  const int64_t rows = k_last ? n : k;
  const int64_t cols = k_last ? k : n;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    const std::string at = indexed(name, i, tensors.size());
    MEGAMOE_RETURN_IF_ERROR(check_type(tensor, at, weight_types()));
    MEGAMOE_RETURN_IF_ERROR(check_type(tensor, at, weight_types(scenario.weight)));
    MEGAMOE_RETURN_IF_ERROR(check_layout(tensor, at));
    const bool words = tensor.dtype == DType::kInt32;
    if (words && cols % kCodesPerWord != 0) {
      return Status(Code::kInvalidType, at + " has type int32: expected int4 for rows of " +
                                            std::to_string(cols) + ", which is no multiple of 8");
    }
    MEGAMOE_RETURN_IF_ERROR(
        check_shapes(tensors, at, i, experts, {rows, words ? cols / kCodesPerWord : cols}));
    MEGAMOE_RETURN_IF_ERROR(check_pairs(as_codes(tensor), at));
  }
  return Status::ok();
}

// Shape of the scales of one expert.
std::vector<int64_t> scale_shape(const LinearWeights& weights, WeightScaling scaling, int64_t k, int64_t n) {
  const auto blocks = [](int64_t length, int64_t size) { return (length + size - 1) / size; };
  switch (scaling) {
    case WeightScaling::kMx:
      return {n, blocks(k, 2 * kMxGroup), 2};
    case WeightScaling::kGroups:
      return {n, blocks(k, weights.scale_group)};
    case WeightScaling::kBlocks:
      // Separate gate and up tensors have their own blocks.
      return {weights.up.empty() ? blocks(n, kBlock) : 2 * blocks(n / 2, kBlock), blocks(k, kBlock)};
    default:
      return {n};
  }
}

Status check_group(const LinearWeights& weights, const Scenario& scenario, const std::string& name) {
  const int64_t group = weights.scale_group;
  const WeightForm form = weight_form(scenario.weight, group);
  const bool fits = form.scaling == WeightScaling::kGroups ? group == 32 || group == 64 || group == kBlock
                                                           : group == 0 || group == kBlock;
  if (fits && form.scaling == scenario.weight_scaling) return Status::ok();
  const char* expected = scenario.weight_scaling == WeightScaling::kGroups   ? "32, 64 or 128"
                         : scenario.weight_scaling == WeightScaling::kBlocks ? "128"
                                                                             : "0";
  return Status(Code::kInvalidArgument, name + ".scale_group = " + std::to_string(group) + ": expected " +
                                            expected + " with " + dtype_name(scenario.weight) + " weights");
}

Status check_scales(const LinearWeights& weights, const Scenario& scenario, const LinearForm& form,
                    const std::string& name, const std::string& weight_name) {
  const WeightScaling scaling = scenario.weight_scaling;
  if (scaling == WeightScaling::kNone) {
    if (weights.scale.empty()) return Status::ok();
    return Status(Code::kInvalidArgument, name + " has " + std::to_string(weights.scale.size()) +
                                              " tensors: expected none for " + dtype_name(scenario.weight) +
                                              " " + weight_name);
  }
  MEGAMOE_RETURN_IF_ERROR(check_count(weights.scale, name, form.experts));
  const std::vector<int64_t> shape = scale_shape(weights, scaling, form.k, form.n);
  const std::vector<DType> types = scaling == WeightScaling::kMx ? std::vector{DType::kFloat8E8M0}
                                   : scaling == WeightScaling::kPerColumn
                                       ? std::vector{DType::kUInt64, DType::kFloat32}
                                       : std::vector{DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  for (size_t i = 0; i < weights.scale.size(); ++i) {
    const std::string at = indexed(name, i, weights.scale.size());
    MEGAMOE_RETURN_IF_ERROR(check_type(weights.scale[i], at, types));
    MEGAMOE_RETURN_IF_ERROR(check_plain(weights.scale[i], at));
    MEGAMOE_RETURN_IF_ERROR(check_shapes(weights.scale, at, i, form.experts, shape));
  }
  return Status::ok();
}

// Gate and up columns in turn need both in one tensor.
Status check_interleave(const LinearWeights& weights, const LinearForm& form, const std::string& name) {
  const int64_t together = weights.interleave;
  if (together == 0) return Status::ok();
  const int64_t outputs = form.n / 2;
  const bool in_turn = form.gated && weights.up.empty();
  if (in_turn && together > 0 && outputs % together == 0) return Status::ok();
  return Status(Code::kInvalidArgument,
                name + "_interleave = " + std::to_string(together) + ": expected " +
                    (in_turn      ? "0 or a divisor of " + std::to_string(outputs) + ", the gate columns"
                     : form.gated ? "0 with separate up tensors"
                                  : "0 without gate and up columns"));
}

Status check_zeros(const LinearWeights& weights, const Scenario& scenario, const LinearForm& form,
                   const std::string& name) {
  if (weights.zero.empty()) return Status::ok();
  if (scenario.weight_scaling != WeightScaling::kGroups) {
    return Status(Code::kInvalidArgument, name + " has " + std::to_string(weights.zero.size()) +
                                              " tensors: expected none without scales of groups");
  }
  MEGAMOE_RETURN_IF_ERROR(check_count(weights.zero, name, form.experts));
  for (size_t i = 0; i < weights.zero.size(); ++i) {
    const std::string at = indexed(name, i, weights.zero.size());
    MEGAMOE_RETURN_IF_ERROR(check_type(weights.zero[i], at, {DType::kInt8}));
    MEGAMOE_RETURN_IF_ERROR(check_plain(weights.zero[i], at));
    MEGAMOE_RETURN_IF_ERROR(check_shapes(weights.zero, at, i, form.experts,
                                         scale_shape(weights, WeightScaling::kGroups, form.k, form.n)));
  }
  return Status::ok();
}

Status check_biases(const std::vector<TensorView>& biases, const LinearForm& form, const std::string& name) {
  if (biases.empty()) return Status::ok();
  MEGAMOE_RETURN_IF_ERROR(check_count(biases, name, form.experts));
  for (size_t i = 0; i < biases.size(); ++i) {
    const std::string at = indexed(name, i, biases.size());
    MEGAMOE_RETURN_IF_ERROR(check_type(biases[i], at, {DType::kFloat32}));
    MEGAMOE_RETURN_IF_ERROR(check_plain(biases[i], at));
    MEGAMOE_RETURN_IF_ERROR(check_shapes(biases, at, i, form.experts, {form.n}));
  }
  return Status::ok();
}

// Where the tensors of a layer hold column j: gate and up columns may stand in turn.
int64_t stored_column(const LinearWeights& weights, int64_t n, int64_t j) {
  const int64_t together = weights.interleave;
  if (together == 0) return j;
  const bool up = j >= n / 2;
  const int64_t output = up ? j - n / 2 : j;
  return output / together * (2 * together) + (up ? together : 0) + output % together;
}

// Puts one expert's stored matrix (k, n) into columns [first, first + n) of `matrix`.
void read_columns(const LinearWeights& weights, const std::vector<TensorView>& tensors, int64_t expert,
                  int64_t n, int64_t first, ExpertMatrix& matrix) {
  const TensorView tensor = as_codes(tensors[is_stacked(tensors, 2) ? 0 : expert]);
  for (int64_t i = 0; i < matrix.k; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t c = stored_column(weights, n, j);
      const int64_t at =
          weights.k_last ? matrix_offset(tensor, expert, c, i) : matrix_offset(tensor, expert, i, c);
      matrix.weight[i * matrix.n + first + j] = read_number(tensor, at);
    }
  }
}

// One number per column of one expert, of scales or biases (E, n) or E x (n,).
std::vector<float> read_vector(const LinearWeights& weights, const std::vector<TensorView>& tensors,
                               int64_t expert, int64_t n) {
  std::vector<float> numbers(static_cast<size_t>(n));
  const bool stacked = is_stacked(tensors, 1);
  const TensorView& tensor = tensors[stacked ? 0 : expert];
  for (int64_t j = 0; j < n; ++j) {
    const int64_t c = stored_column(weights, n, j);
    numbers[j] = read_number(tensor, stacked ? offset(tensor, expert, c) : offset(tensor, c));
  }
  return numbers;
}

// Element (row, column) of one expert's scales or zero points, (E, rows, columns) or E x (rows, columns). MX
// scales (E, n, ceil(k / 64), 2) are read flat along the last two dimensions.
float read_grouped(const std::vector<TensorView>& tensors, WeightScaling scaling, int64_t expert, int64_t row,
                   int64_t column) {
  const bool pairs = scaling == WeightScaling::kMx;
  const bool stacked = is_stacked(tensors, pairs ? 3 : 2);
  const TensorView& tensor = tensors[stacked ? 0 : expert];
  const int64_t* strides = tensor.strides + (stacked ? 1 : 0);
  const int64_t at = (stacked ? expert * tensor.strides[0] : 0) + row * strides[0] +
                     (pairs ? column / 2 * strides[1] + column % 2 * strides[2] : column * strides[1]);
  return read_number(tensor, at);
}

// Turns codes into values, which are exact in double: scale * (code - zero).
void apply_group_scales(const LinearWeights& weights, WeightScaling scaling, int64_t expert,
                        ExpertMatrix& matrix) {
  const bool blocks = scaling == WeightScaling::kBlocks;
  const int64_t group = scaling == WeightScaling::kMx ? kMxGroup : weights.scale_group;
  const int64_t gate = weights.up.empty() ? matrix.n : matrix.n / 2;  // columns before the second tensor
  for (int64_t n = 0; n < matrix.n; ++n) {
    const int64_t column = stored_column(weights, matrix.n, n);
    const int64_t row = !blocks         ? column
                        : column < gate ? column / kBlock
                                        : (gate + kBlock - 1) / kBlock + (column - gate) / kBlock;
    for (int64_t k = 0; k < matrix.k; ++k) {
      double& weight = matrix.weight[k * matrix.n + n];
      if (!weights.zero.empty()) weight -= read_grouped(weights.zero, scaling, expert, row, k / group);
      weight *= double{read_grouped(weights.scale, scaling, expert, row, k / group)};
    }
  }
}

float fl32(double value) {
  return static_cast<float>(value);
}

// sum_k row(k) * weight[k][n] in double for each n; exact where both are integers.
template <class Row>
std::vector<double> multiply(const ExpertMatrix& matrix, const Row& row) {
  std::vector<double> sums(static_cast<size_t>(matrix.n), 0.0);
  for (int64_t k = 0; k < matrix.k; ++k) {
    const double a = row(k);
    const double* w = matrix.weight.data() + k * matrix.n;
    for (int64_t n = 0; n < matrix.n; ++n) sums[n] += a * w[n];
  }
  return sums;
}

// Exact integer sums, then the channel scale, then the row scale, each product rounded to float. Scales of
// groups are in the weights already.
std::vector<float> scaled_sums(const CodedRow& row, const ExpertMatrix& matrix) {
  const std::vector<double> sums = multiply(matrix, [&](int64_t k) { return row.codes[k]; });
  std::vector<float> out(sums.size());
  for (size_t n = 0; n < sums.size(); ++n) {
    const float t = matrix.scale.empty() ? fl32(sums[n]) : fl32(sums[n]) * matrix.scale[n];
    out[n] = t * row.scales[0];
  }
  return out;
}

// int8 codes q = 16 * high + low + 8 as two int4 products; the bias stands for the 8.
std::vector<float> compensated_sums(const CodedRow& row, const ExpertMatrix& matrix) {
  const auto high = [&](int64_t k) { return std::floor(row.codes[k] / 16); };
  const std::vector<double> highs = multiply(matrix, high);
  const std::vector<double> lows =
      multiply(matrix, [&](int64_t k) { return row.codes[k] - 16 * high(k) - 8; });
  std::vector<float> out(highs.size());
  for (size_t n = 0; n < highs.size(); ++n) {
    float t = 16 * (fl32(highs[n]) * matrix.scale[n]);
    t = t + fl32(lows[n]) * matrix.scale[n];
    t = t + matrix.bias[n];
    out[n] = t * row.scales[0];
  }
  return out;
}

}  // namespace

Status check_linear(const LinearWeights& weights, const Scenario& scenario, const LinearForm& form) {
  const std::string index = std::to_string(form.index);
  const std::string name = form.prefix + "weight" + index;
  const auto check = [&](const std::vector<TensorView>& tensors, const std::string& who, int64_t n) {
    return check_matrices(tensors, who, weights.k_last, scenario, form.experts, form.k, n);
  };
  if (weights.up.empty()) {
    MEGAMOE_RETURN_IF_ERROR(check(weights.weight, name, form.n));
  } else if (!form.gated) {
    return Status(Code::kInvalidArgument, name + ".up has " + std::to_string(weights.up.size()) +
                                              " tensors: expected none without a gated activation");
  } else {
    MEGAMOE_RETURN_IF_ERROR(check(weights.weight, name, form.n / 2));
    MEGAMOE_RETURN_IF_ERROR(check(weights.up, name + ".up", form.n / 2));
  }
  MEGAMOE_RETURN_IF_ERROR(check_interleave(weights, form, name));
  MEGAMOE_RETURN_IF_ERROR(check_group(weights, scenario, name));
  MEGAMOE_RETURN_IF_ERROR(check_scales(weights, scenario, form, form.prefix + "weight_scales" + index, name));
  MEGAMOE_RETURN_IF_ERROR(check_zeros(weights, scenario, form, name + ".zero"));
  const std::string bias_name = form.prefix + "bias" + index, added_name = form.prefix + "added_bias" + index;
  MEGAMOE_RETURN_IF_ERROR(check_biases(weights.bias, form, bias_name));
  const bool compensates =
      scenario.weight == DType::kInt4 && scenario.weight_scaling == WeightScaling::kPerColumn;
  if (!compensates && !weights.added_bias.empty()) {
    return Status(Code::kInvalidArgument, added_name + " has " + std::to_string(weights.added_bias.size()) +
                                              " tensors: expected none without int4 weights with a scale per "
                                              "column, use " +
                                              bias_name);
  }
  return check_biases(weights.added_bias, form, added_name);
}

ExpertMatrix read_expert(const LinearWeights& weights, const Scenario& scenario, int64_t expert, int64_t k,
                         int64_t n) {
  ExpertMatrix matrix;
  matrix.k = k;
  matrix.n = n;
  matrix.weight.resize(static_cast<size_t>(k * n));
  if (weights.up.empty()) {
    read_columns(weights, weights.weight, expert, n, 0, matrix);
  } else {
    read_columns(weights, weights.weight, expert, n / 2, 0, matrix);
    read_columns(weights, weights.up, expert, n / 2, n / 2, matrix);
  }
  const WeightScaling scaling = scenario.weight_scaling;
  if (scaling == WeightScaling::kPerColumn) {
    matrix.scale = read_vector(weights, weights.scale, expert, n);
  } else if (scaling != WeightScaling::kNone) {
    apply_group_scales(weights, scaling, expert, matrix);
  }
  if (!weights.bias.empty()) matrix.bias = read_vector(weights, weights.bias, expert, n);
  if (!weights.added_bias.empty()) matrix.added = read_vector(weights, weights.added_bias, expert, n);
  return matrix;
}

std::vector<float> linear(const Scenario& scenario, const CodedRow& row, const ExpertMatrix& matrix,
                          float bias_weight) {
  // In int4 with a scale per column the bias is part of the scheme, and another one may come behind the
  // scales.
  const bool compensates = scenario.weight == DType::kInt4 && !matrix.scale.empty();
  const std::vector<float>& late = compensates ? matrix.added : matrix.bias;
  std::vector<float> out;
  if (compensates && !matrix.bias.empty()) {
    out = compensated_sums(row, matrix);
  } else if (scenario.scaling == Scaling::kPerRow) {
    out = scaled_sums(row, matrix);
  } else {
    for (double sum : multiply(matrix, [&](int64_t k) { return value(row, k); })) {
      out.push_back(fl32(sum) + 0.0f);  // a sum that is zero is +0
    }
  }
  for (size_t n = 0; n < late.size(); ++n) out[n] = out[n] + late[n] * bias_weight;
  return out;
}

}  // namespace megamoe::reference
