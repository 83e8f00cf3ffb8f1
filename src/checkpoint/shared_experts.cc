// Cuts the weights, scales and zero points of one expert along its width; joins lists of experts.
#include "checkpoint/shared_experts.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace megamoe::checkpoint {
namespace {

/// The only expert of a list of weights as a matrix.
TensorView matrix_of(const std::vector<TensorView>& list) {
  TensorView t = list[0];
  if (t.dims == 2) return t;
  for (int d = 0; d < 2; ++d) {
    t.shape[d] = t.shape[d + 1];
    t.strides[d] = t.strides[d + 1];
  }
  t.dims = 2;
  return t;
}

/// [begin, begin + length) of a dimension.
TensorView part_of(TensorView t, int dim, int64_t begin, int64_t length) {
  t.data = static_cast<const std::byte*>(t.data) + begin * t.strides[dim] * dtype_bits(t.dtype) / 8;
  t.shape[dim] = length;
  return t;
}

/// A matrix of scales or zero points as contiguous memory, behind what is at `out`.
std::byte* copy_rows(const TensorView& t, std::byte* out) {
  const int64_t size = dtype_bits(t.dtype) / 8;
  for (int64_t r = 0; r < t.shape[0]; ++r) {
    const auto* const row = static_cast<const std::byte*>(t.data) + r * t.strides[0] * size;
    std::memcpy(out, row, static_cast<size_t>(t.shape[1] * size));
    out += t.shape[1] * size;
  }
  return out;
}

/// Expert i of the scales or zero points of one linear layer: rows [i, i + 1) * rows of each of `parts` equal
/// ranges, and `columns` columns from column i * columns where they are cut.
Status cut_beside(const std::vector<TensorView>& whole, int64_t count, int64_t parts, bool by_columns,
                  std::vector<TensorView>& out, LayerMemory& memory) {
  if (whole.empty()) return Status::ok();
  const TensorView t = matrix_of(whole);
  const int64_t rows = by_columns ? t.shape[0] : t.shape[0] / parts / count;
  const int64_t columns = by_columns ? t.shape[1] / count : t.shape[1];
  const int64_t made_rows = by_columns ? rows : parts * rows;
  for (int64_t i = 0; i < count; ++i) {
    auto made = memory.take(made_rows * columns * dtype_bits(t.dtype) / 8);
    if (!made) return made.status();
    out.push_back(TensorView(*made, t.dtype, {made_rows, columns}));
    if (by_columns) {
      copy_rows(part_of(t, 1, i * columns, columns), *made);
      continue;
    }
    std::byte* at = *made;
    for (int64_t part = 0; part < parts; ++part) {
      at = copy_rows(part_of(t, 0, (part * count + i) * rows, rows), at);
    }
  }
  return Status::ok();
}

/// Tensors of single experts, `dims` dimensions each, of a stacked tensor or a list.
std::vector<TensorView> single(const std::vector<TensorView>& list, int dims) {
  if (list.size() != 1 || list[0].dims == dims) return list;
  std::vector<TensorView> result;
  for (int64_t e = 0; e < list[0].shape[0]; ++e) {
    TensorView t = part_of(list[0], 0, e, 1);
    for (int d = 0; d < dims; ++d) {
      t.shape[d] = t.shape[d + 1];
      t.strides[d] = t.strides[d + 1];
    }
    t.dims = dims;
    result.push_back(t);
  }
  return result;
}

/// The same weights as one tensor per expert, gate and up apart where they are `parts` of a linear layer.
LinearWeights listed(const LinearWeights& from, int64_t parts) {
  LinearWeights to = from;
  to.weight = single(from.weight, 2);
  to.up = single(from.up, 2);
  const bool channels = from.scale_group == 0;
  to.scale = single(from.scale, channels ? 1 : 2);
  to.zero = single(from.zero, 2);
  if (parts == 1 || !to.up.empty()) return to;
  const int outputs = from.k_last ? 0 : 1;
  for (TensorView& t : to.weight) {
    const int64_t half = t.shape[outputs] / 2;
    to.up.push_back(part_of(t, outputs, half, half));
    t = part_of(t, outputs, 0, half);
  }
  return to;
}

}  // namespace

Status append_experts(const std::string& name, const LinearWeights& more, int64_t parts, LinearWeights& all,
                      LayerMemory& memory) {
  const auto refuse = [&](const std::string& got, const std::string& expected) {
    return Status(Code::kUnsupported, "tensors '" + name + "' have " + got + ": expected " + expected +
                                          " like the routed experts");
  };
  LinearWeights own = listed(more, parts);
  LinearWeights result = listed(all, parts);
  const DType type = own.weight[0].dtype, expected = result.weight[0].dtype;
  if (type != expected) return refuse(std::string("type ") + dtype_name(type), dtype_name(expected));
  if (own.k_last != result.k_last) {  // a matrix of whole bytes may be read either way
    for (auto* list : {&own.weight, &own.up}) {
      for (TensorView& t : *list) {
        std::swap(t.shape[0], t.shape[1]);
        std::swap(t.strides[0], t.strides[1]);
      }
    }
  }
  const bool blocks = type == DType::kFloat8E4M3;
  if (blocks && parts == 2 && all.up.empty() && result.weight[0].shape[result.k_last ? 0 : 1] % 128 != 0) {
    return refuse("blocks of scales of their own", "blocks that gate and up share");
  }
  if (!own.scale.empty() && own.scale[0].dtype != result.scale[0].dtype) {
    return refuse(std::string("scales of type ") + dtype_name(own.scale[0].dtype),
                  dtype_name(result.scale[0].dtype));
  }
  if (!all.bias.empty() || !more.bias.empty()) return refuse("a bias beside or without one", "none");
  for (const bool first : {true, false}) {  // zero points may be absent on one side
    LinearWeights &lacks = first ? own : result, &has = first ? result : own;
    if (!lacks.zero.empty() || has.zero.empty()) continue;
    for (const TensorView& scale : lacks.scale) {
      auto made = memory.take(scale.elements());
      if (!made) return made.status();
      std::memset(*made, 0, static_cast<size_t>(scale.elements()));
      lacks.zero.push_back(TensorView(*made, DType::kInt8, {scale.shape[0], scale.shape[1]}));
    }
  }
  for (auto list :
       {&LinearWeights::weight, &LinearWeights::up, &LinearWeights::scale, &LinearWeights::zero}) {
    (result.*list).insert((result.*list).end(), (own.*list).begin(), (own.*list).end());
  }
  all = std::move(result);
  return Status::ok();
}

Status split_shared(const std::string& name, int64_t count, int64_t width, LinearWeights& weight1,
                    LinearWeights& weight2, LayerMemory& memory) {
  if (count == 1) return Status::ok();
  const auto refuse = [&](const std::string& expected) {
    return Status(Code::kUnsupported, "tensors '" + name + "' of " + std::to_string(count) +
                                          " shared experts of width " + std::to_string(width) +
                                          ": expected " + expected);
  };
  const int64_t group = weight1.scale_group;
  const bool grouped = group != 0 && weight2.scale_group == group;
  if (group != weight2.scale_group || (grouped && width % group != 0)) {
    return refuse("scales that end where an expert does, a multiple of " +
                  std::to_string(std::max(group, weight2.scale_group)));
  }
  if (dtype_bits(weight1.weight[0].dtype) == 4 && width % 2 != 0) return refuse("an even width");
  if (!weight1.bias.empty() || !weight2.bias.empty()) return refuse("no biases");
  if (!grouped && !weight1.scale.empty()) return refuse("weights without scales, or with those of groups");

  const LinearWeights whole1 = weight1, whole2 = weight2;
  for (LinearWeights* made : {&weight1, &weight2}) {
    for (auto* list : {&made->weight, &made->up, &made->scale, &made->zero}) list->clear();
  }
  const int outputs = whole1.k_last ? 0 : 1, reduction = whole2.k_last ? 1 : 0;
  const TensorView first = matrix_of(whole1.weight), down = matrix_of(whole2.weight);
  for (int64_t i = 0; i < count; ++i) {
    weight1.weight.push_back(part_of(first, outputs, i * width, width));
    weight1.up.push_back(whole1.up.empty() ? part_of(first, outputs, (count + i) * width, width)
                                           : part_of(matrix_of(whole1.up), outputs, i * width, width));
    weight2.weight.push_back(part_of(down, reduction, i * width, width));
  }
  for (auto list : {&LinearWeights::scale, &LinearWeights::zero}) {
    MEGAMOE_RETURN_IF_ERROR(cut_beside(whole1.*list, count, 2, false, weight1.*list, memory));
    MEGAMOE_RETURN_IF_ERROR(cut_beside(whole2.*list, count, 1, true, weight2.*list, memory));
  }
  return Status::ok();
}

}  // namespace megamoe::checkpoint
