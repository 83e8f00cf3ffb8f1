// The table of weight formats.
#include "pack/weight_types.h"

namespace megamoe::pack {
namespace {

using kernel::Family;
using kernel::WeightCode;

constexpr WeightType kTypes[] = {
    {DType::kBFloat16, Family::kBf16, WeightCode::kStrip, ScaleKind::kNone},
    {DType::kInt8, Family::kS8, WeightCode::kStrip, ScaleKind::kChannel},
    {DType::kInt4, Family::kS8, WeightCode::kInt4, ScaleKind::kChannel},
    {DType::kFloat8E4M3, Family::kBf16, WeightCode::kE4M3, ScaleKind::kMx},
    {DType::kFloat8E5M2, Family::kBf16, WeightCode::kE5M2, ScaleKind::kMx},
    {DType::kFloat4E2M1, Family::kBf16, WeightCode::kE2M1, ScaleKind::kMx},
    {DType::kInt4, Family::kBf16, WeightCode::kInt4Groups, ScaleKind::kGroups},
    {DType::kFloat8E4M3, Family::kBf16, WeightCode::kE4M3Groups, ScaleKind::kBlocks},
};
constexpr int64_t kNibblesPerWord = 8;

void widen(std::vector<TensorView>& tensors) {
  for (TensorView& t : tensors) {
    // Shapes are not checked yet: what cannot be widened stays a type that is no weight.
    if (t.dtype != DType::kInt32 || t.dims < 2 || t.dims > kMaxDims) continue;
    int64_t& last = t.shape[t.dims - 1];
    int64_t elements = 0;
    if (__builtin_mul_overflow(last, kNibblesPerWord, &elements)) continue;
    t.dtype = DType::kInt4;
    last = elements;
    for (int d = 0; d < t.dims - 1; ++d) t.strides[d] *= kNibblesPerWord;
  }
}

}  // namespace

std::span<const WeightType> weight_types() {
  return kTypes;
}

const WeightType* find_weight_type(DType dtype, bool grouped) {
  for (const WeightType& type : kTypes) {
    if (type.dtype == dtype && is_grouped(type.scales) == grouped) return &type;
  }
  return nullptr;
}

std::string weight_type_names() {
  std::string names;
  for (const WeightType& type : kTypes) {
    if (is_grouped(type.scales)) continue;
    names += (names.empty() ? "" : ", ") + std::string(dtype_name(type.dtype));
  }
  return names + " or int32 (eight int4)";
}

std::string weight_form_name(DType dtype, ScaleKind scales) {
  return std::string(dtype_name(dtype)) + (is_grouped(scales) ? " with scale_group" : "");
}

LinearWeights with_nibbles(LinearWeights weights) {
  widen(weights.weight);
  widen(weights.up);
  return weights;
}

}  // namespace megamoe::pack
