// Cuts the weights, scales and zero points of one expert along its width.
#include "checkpoint/shared_experts.h"

#include <cstring>
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

}  // namespace

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
