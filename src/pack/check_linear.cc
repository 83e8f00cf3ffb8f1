// Checks of the weights and scales of one linear layer, and the geometry that follows from them.
#include <algorithm>
#include <string>

#include "base/memory.h"
#include "base/strides.h"
#include "pack/panel_source.h"
#include "pack/weight_matrix.h"
#include "pack/weight_types.h"

namespace megamoe::pack {
namespace {

// Longest reduction whose sum of products of any two int8 codes fits into int32.
constexpr int64_t kMaxInt8Reduction = INT32_MAX / (128 * 128);

std::string text(int64_t value) {
  return std::to_string(value);
}

Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

std::string indexed(const std::string& name, size_t index, size_t count) {
  return count > 1 ? name + "[" + std::to_string(index) + "]" : name;
}

/// Sizes of one list of weights.
struct Sizes {
  int64_t experts = 0;
  int64_t k = 0;
  int64_t n = 0;
};

/// Two elements in every byte of a row, and no row that begins inside a byte.
bool has_whole_bytes(const TensorView& t) {
  const int last = t.dims - 1;
  bool whole = t.shape[last] % 2 == 0 && t.strides[last] == 1;
  for (int d = 0; d < last; ++d) whole = whole && (t.shape[d] <= 1 || t.strides[d] % 2 == 0);
  return whole;
}

Result<Sizes> check_tensors(const std::vector<TensorView>& tensors, bool k_last, const std::string& name) {
  const char* const matrix = k_last ? "(N, K)" : "(K, N)";
  if (tensors.empty()) {
    return invalid(name + " has no tensors: expected one stacked tensor or one per local expert");
  }
  const TensorView& first = tensors[0];
  const bool stacked = is_stacked(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& t = tensors[i];
    const std::string who = indexed(name, i, tensors.size());
    const WeightType* const type = find_weight_type(t.dtype);
    if (type == nullptr) {
      return Status(Code::kInvalidType,
                    who + " has type " + dtype_name(t.dtype) + ": expected " + weight_type_names());
    }
    if (t.dtype != first.dtype) {
      return Status(Code::kInvalidType, who + " has type " + dtype_name(t.dtype) + ": expected " +
                                            dtype_name(first.dtype) + " like " + name + "[0]");
    }
    const bool nibbles = dtype_bits(t.dtype) == 4;
    if (t.layout == Layout::kFractalNzC0_32 && !nibbles) {
      return invalid(who + " has layout " + layout_name(t.layout) + ": expected ND or FRACTAL_NZ with " +
                     dtype_name(t.dtype));
    }
    if (t.layout != first.layout) {
      return invalid(who + " has layout " + layout_name(t.layout) + ": expected " +
                     layout_name(first.layout) + " like " + name + "[0]");
    }
    if (!stacked && t.dims != 2) {
      const std::string expected = tensors.size() > 1
                                       ? std::string("2 dimensions ") + matrix + " in a list of tensors"
                                       : std::string(k_last ? "(E, N, K)" : "(E, K, N)") + " or " + matrix;
      return invalid(who + " has shape " + t.shape_text() + ": expected " + expected);
    }
    for (int d = 0; d < t.dims; ++d) {
      if (t.shape[d] < (stacked && d == 0 ? 0 : 1)) {
        return invalid(who + " has shape " + t.shape_text() + ": expected sizes of at least 1");
      }
    }
    if (nibbles && t.layout == Layout::kNd && !has_whole_bytes(t)) {
      return invalid(who + " has shape " + t.shape_text() +
                     ": expected an even last dimension without gaps, in rows of whole bytes, with " +
                     dtype_name(t.dtype));
    }
    if (!stacked && (t.shape[0] != first.shape[0] || t.shape[1] != first.shape[1])) {
      return invalid(who + " has shape " + t.shape_text() + ": expected " + first.shape_text() + " like " +
                     name + "[0]");
    }
    if (t.data == nullptr && !(stacked && t.shape[0] == 0)) {
      return invalid(who + " has no data: expected memory of shape " + t.shape_text());
    }
  }
  Sizes sizes;
  sizes.experts = stacked ? first.shape[0] : static_cast<int64_t>(tensors.size());
  sizes.k = first.shape[first.dims - (k_last ? 1 : 2)];
  sizes.n = first.shape[first.dims - (k_last ? 2 : 1)];
  return sizes;
}

/// A list of scales or biases: one stacked tensor (experts, shape...) or one (shape...) per expert.
Status check_rows(const std::vector<TensorView>& rows, const Geometry& g, const std::vector<int64_t>& shape,
                  std::initializer_list<DType> types, const std::string& name) {
  const auto text_of = [&](bool stacked) {
    TensorView t(nullptr, *types.begin(), {});
    if (stacked) t.shape[t.dims++] = g.experts;
    for (const int64_t extent : shape) t.shape[t.dims++] = extent;
    return t.shape_text();
  };
  std::string type_names;
  for (const DType type : types)
    type_names += (type_names.empty() ? "" : " or ") + std::string(dtype_name(type));
  if (rows.empty()) {
    return invalid(name + " has no tensors: expected " + type_names + " " + text_of(true) + " with " +
                   dtype_name(g.dtype) + " weights");
  }
  const bool stacked = rows.size() == 1 && rows[0].dims == static_cast<int>(shape.size()) + 1;
  if (rows.size() == 1 && !stacked && g.experts > 1) {
    return invalid(name + " has shape " + rows[0].shape_text() + ": expected " + text_of(true) + ", or " +
                   text(g.experts) + " tensors of shape " + text_of(false));
  }
  if (!stacked && static_cast<int64_t>(rows.size()) != g.experts) {
    return invalid(name + " has " + std::to_string(rows.size()) + " tensors: expected one of shape " +
                   text_of(true) + " or " + text(g.experts) + " of shape " + text_of(false));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorView& t = rows[i];
    const std::string who = indexed(name, i, rows.size());
    if (std::find(types.begin(), types.end(), t.dtype) == types.end()) {
      return Status(Code::kInvalidType,
                    who + " has type " + dtype_name(t.dtype) + ": expected " + type_names);
    }
    if (t.layout != Layout::kNd) {
      return invalid(who + " has layout " + layout_name(t.layout) + ": expected ND");
    }
    const int lead = stacked ? 1 : 0;
    bool fits = t.dims == static_cast<int>(shape.size()) + lead && (!stacked || t.shape[0] == g.experts);
    for (size_t d = 0; fits && d < shape.size(); ++d) fits = t.shape[lead + static_cast<int>(d)] == shape[d];
    if (!fits) return invalid(who + " has shape " + t.shape_text() + ": expected " + text_of(stacked));
    if (t.data == nullptr && g.experts > 0) {
      return invalid(who + " has no data: expected memory of shape " + t.shape_text());
    }
    MEGAMOE_RETURN_IF_ERROR(base::check_strides(t, who));
  }
  return Status::ok();
}

Status check_group_scales(const std::vector<TensorView>& scales, const Geometry& g, int64_t rows,
                          const std::string& name) {
  MEGAMOE_RETURN_IF_ERROR(check_rows(scales, g, {rows, kernel::groups_of(g.k, g.form.group)},
                                     {DType::kFloat32, DType::kFloat16, DType::kBFloat16}, name));
  for (size_t i = 1; i < scales.size(); ++i) {
    if (scales[i].dtype == scales[0].dtype) continue;
    return Status(Code::kInvalidType, indexed(name, i, scales.size()) + " has type " +
                                          dtype_name(scales[i].dtype) + ": expected " +
                                          dtype_name(scales[0].dtype) + " like " + name + "[0]");
  }
  return Status::ok();
}

/// `block_rows`: rows of scales of blocks.
Status check_scales(const std::vector<TensorView>& scales, const Geometry& g, int64_t block_rows,
                    const std::string& name) {
  switch (g.scales) {
    case ScaleKind::kChannel:
      return check_rows(scales, g, {g.n}, {DType::kUInt64, DType::kFloat32}, name);
    case ScaleKind::kMx:
      return check_rows(scales, g, {g.n, base::ceil_div(g.k, 64), 2}, {DType::kFloat8E8M0}, name);
    case ScaleKind::kGroups:
      return check_group_scales(scales, g, g.n, name);
    case ScaleKind::kBlocks:
      return check_group_scales(scales, g, block_rows, name);
    case ScaleKind::kNone:
      break;
  }
  if (scales.empty()) return Status::ok();
  return invalid(name + " has " + std::to_string(scales.size()) + " tensors: expected none with " +
                 dtype_name(g.dtype) + " weights");
}

/// "weight1" -> "weight1_interleave", a property of one tensor that holds gate and up columns.
Status check_interleave(const LinearWeights& weights, const Geometry& g, const std::string& name) {
  if (weights.interleave == 0) return Status::ok();
  const std::string who = name + "_interleave = " + text(weights.interleave);
  if (!g.gated) return invalid(who + ": expected 0 without gate and up columns");
  if (!weights.up.empty()) return invalid(who + ": expected 0 with separate up tensors");
  if (weights.interleave > 0 && g.outputs() % weights.interleave == 0) return Status::ok();
  return invalid(who + ": expected 0 or a divisor of " + text(g.outputs()) + ", the gate columns");
}

Status check_group(const LinearWeights& weights, DType dtype, const std::string& name) {
  const int64_t group = weights.scale_group;
  const WeightType* type = find_weight_type(dtype, /*grouped=*/true);
  std::string expected = "0";
  if (type != nullptr && type->scales == ScaleKind::kBlocks) {
    if (group == 0 || group == kScaleBlock) return Status::ok();
    expected += " or " + text(kScaleBlock);
  } else if (type != nullptr) {
    expected += " or one of";
    for (const int64_t size : kernel::kGroupSizes) {
      if (group == 0 || group == size) return Status::ok();
      expected += (size == kernel::kGroupSizes[0] ? " " : ", ") + text(size);
    }
  } else if (group == 0) {
    return Status::ok();
  }
  return invalid(name + ".scale_group = " + text(group) + ": expected " + expected + " with " +
                 dtype_name(dtype) + " weights");
}

/// Zero points: shapes as the scales, and codes less a zero point fit into a byte with their negative.
Status check_zeros(const std::vector<TensorView>& zeros, const Geometry& g, const std::string& name) {
  constexpr int8_t kLeast = -120, kMost = 119;
  if (zeros.empty()) return Status::ok();
  if (g.scales != ScaleKind::kGroups) {
    return invalid(name + " has " + text(static_cast<int64_t>(zeros.size())) +
                   " tensors: expected none without int4 weights with scale_group");
  }
  const int64_t groups = kernel::groups_of(g.k, g.form.group);
  MEGAMOE_RETURN_IF_ERROR(check_rows(zeros, g, {g.n, groups}, {DType::kInt8}, name));
  for (int64_t expert = 0; expert < g.experts; ++expert) {
    for (int64_t n = 0; n < g.n; ++n) {
      for (int64_t group = 0; group < groups; ++group) {
        const auto zero = static_cast<int8_t>(*group_element(zeros, expert, n, group));
        if (zero >= kLeast && zero <= kMost) continue;
        return invalid(name + " of expert " + text(expert) + " at (" + text(n) + ", " + text(group) +
                       ") is " + text(zero) + ": expected " + text(kLeast) + " to " + text(kMost));
      }
    }
  }
  return Status::ok();
}

/// Every later size in bytes is below experts * panels * (panel bytes + 256), so checking that one is enough.
bool sizes_fit(const Geometry& g) {
  constexpr int64_t kMaxDimension = int64_t{1} << 48;
  if (g.experts > kMaxDimension || g.k > kMaxDimension || g.n > kMaxDimension) return false;
  int64_t bytes = 0;
  return !__builtin_mul_overflow(kernel::panel_bytes(g.family, g.k) + 256, g.panels(), &bytes) &&
         !__builtin_mul_overflow(bytes, std::max<int64_t>(g.experts, 1), &bytes);
}

/// Separate up tensors are like the gate tensors; without them gate and up columns share one tensor. Sets
/// g.n to the columns of both.
Status check_up(const LinearWeights& weights, const std::string& who, Geometry& g) {
  const std::string shape = weights.weight[0].shape_text();
  if (weights.up.empty()) {
    if (!g.gated || g.n % 2 == 0) return Status::ok();
    return invalid(who + " has shape " + shape + ": expected an even N, gate and up columns side by side");
  }
  if (!g.gated) return invalid(who + " has separate up tensors: expected none without a gated activation");
  auto up = check_tensors(weights.up, weights.k_last, who + ".up");
  if (!up) return up.status();
  if (weights.up[0].dtype != g.dtype) {
    return Status(Code::kInvalidType, who + ".up has type " + dtype_name(weights.up[0].dtype) +
                                          ": expected " + dtype_name(g.dtype) + " like the gate tensors");
  }
  if (up->experts != g.experts || up->k != g.k || up->n != g.n) {
    return invalid(who + ".up has " + std::to_string(weights.up.size()) + " tensors of shape " +
                   weights.up[0].shape_text() + ": expected " + std::to_string(weights.weight.size()) +
                   " of shape " + shape + " like the gate tensors");
  }
  g.n *= 2;
  return Status::ok();
}

/// Scales and zero points, named "weight_scales1" and "weight1.zero" with "weight1".
Status check_scales_and_zeros(const LinearWeights& weights, const std::string& who, Geometry& g) {
  std::string scale_name = who;
  scale_name.insert(who.find_last_not_of("0123456789") + 1, "_scales");
  g.form.group = weights.scale_group;
  const int64_t block_rows =
      weights.up.empty() ? base::ceil_div(g.n, kScaleBlock) : 2 * base::ceil_div(g.n / 2, kScaleBlock);
  MEGAMOE_RETURN_IF_ERROR(check_scales(weights.scale, g, block_rows, scale_name));
  MEGAMOE_RETURN_IF_ERROR(check_zeros(weights.zero, g, who + ".zero"));
  if (g.form.group != 0) g.form.scales = weights.scale[0].dtype;
  g.form.zeros = !weights.zero.empty();
  return Status::ok();
}

/// Biases of both kinds, named "bias1" and "added_bias1" with "weight1", "shared_bias2" with
/// "shared_weight2".
Status check_biases(const LinearWeights& weights, const std::string& who, Geometry& g) {
  const size_t at = who.find("weight"), length = std::string("weight").size();
  const std::string bias_name = std::string(who).replace(at, length, "bias");
  const std::string added_name = std::string(who).replace(at, length, "added_bias");
  g.has_bias = !weights.bias.empty();
  if (g.has_bias) {
    MEGAMOE_RETURN_IF_ERROR(check_rows(weights.bias, g, {g.n}, {DType::kFloat32}, bias_name));
  }
  g.has_added_bias = !weights.added_bias.empty();
  if (!g.has_added_bias) return Status::ok();
  if (!g.bias_is_shift()) {
    return invalid(added_name + " has " + text(static_cast<int64_t>(weights.added_bias.size())) +
                   " tensors: expected none without int4 weights with a scale per channel, use " + bias_name);
  }
  return check_rows(weights.added_bias, g, {g.n}, {DType::kFloat32}, added_name);
}

}  // namespace

Result<Geometry> check_linear(const LinearWeights& given, bool gated, const char* name,
                              const ExpectedSizes& expected) {
  const std::string who = name;
  // Before strides of words become those of the eight int4 in each.
  for (const auto* list : {&given.weight, &given.up}) {
    for (size_t i = 0; i < list->size(); ++i) {
      MEGAMOE_RETURN_IF_ERROR(
          base::check_strides((*list)[i], indexed(list == &given.up ? who + ".up" : who, i, list->size())));
    }
  }
  const LinearWeights weights = with_nibbles(given);
  auto sizes = check_tensors(weights.weight, weights.k_last, who);
  if (!sizes) return sizes.status();

  Geometry g;
  g.dtype = weights.weight[0].dtype;
  MEGAMOE_RETURN_IF_ERROR(check_group(weights, g.dtype, who));
  const WeightType& type = *find_weight_type(g.dtype, weights.scale_group != 0);
  g.family = type.family;
  g.code = type.code;
  g.scales = type.scales;
  g.experts = sizes->experts;
  g.k = sizes->k;
  g.n = sizes->n;
  g.gated = gated;
  MEGAMOE_RETURN_IF_ERROR(check_up(weights, who, g));
  MEGAMOE_RETURN_IF_ERROR(check_sizes(g, who, expected));
  MEGAMOE_RETURN_IF_ERROR(check_interleave(weights, g, who));
  g.interleave = weights.interleave;
  const std::string shape = weights.weight[0].shape_text();
  if (g.has_sums() && g.k > kMaxInt8Reduction) {
    return invalid(who + " has shape " + shape + ": expected K of at most " + text(kMaxInt8Reduction) +
                   " with integer weights, so that sums fit into 32 bits");
  }
  if (!sizes_fit(g)) {
    return invalid(who + " has shape " + shape + ": expected a size in bytes below 2^63");
  }
  MEGAMOE_RETURN_IF_ERROR(check_scales_and_zeros(weights, who, g));
  MEGAMOE_RETURN_IF_ERROR(check_biases(weights, who, g));
  return g;
}

}  // namespace megamoe::pack
