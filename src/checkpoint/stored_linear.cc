// The forms in which checkpoints store weights, but for those of words of int4.
#include "checkpoint/stored_linear.h"

#include <algorithm>

#include "format/bf16.h"
#include "format/float16.h"

namespace megamoe::checkpoint {
namespace {

constexpr const char* kBlockScales = "_scale_inv";
constexpr int64_t kBlock = 128;
constexpr int64_t kMxGroup = 32;

int64_t blocks_of(int64_t length) {
  return base::ceil_div(length, kBlock);
}

Status wrong_type(const std::string& name, const TensorView& t, const char* expected) {
  return Status(Code::kDataLoss,
                "tensor '" + name + "' has type " + dtype_name(t.dtype) + ": expected " + expected);
}

float element(const TensorView& t, int64_t i) {
  switch (t.dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(t.data)[i];
    case DType::kFloat16:
      return format::f16_to_float(static_cast<const uint16_t*>(t.data)[i]);
    default:
      return format::bf16_to_float(static_cast<const uint16_t*>(t.data)[i]);
  }
}

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

/// float16 and float32 weights rounded to bfloat16, others as they are.
Result<TensorView> as_weights(TensorView t, LayerMemory& memory) {
  if (t.dtype != DType::kFloat32 && t.dtype != DType::kFloat16) return t;
  auto made = memory.take(t.elements() * static_cast<int64_t>(sizeof(uint16_t)));
  if (!made) return made.status();
  auto* const out = reinterpret_cast<uint16_t*>(*made);
  for (int64_t i = 0; i < t.elements(); ++i) out[i] = format::bf16_from_float(element(t, i));
  t.data = out;
  t.dtype = DType::kBFloat16;
  return t;
}

Result<TensorView> find_shaped(const TensorSet& tensors, const std::string& name,
                               const std::vector<int64_t>& shape) {
  auto found = tensors.find(name);
  if (found && !has_shape(*found, shape)) return wrong_shape(name, *found, shape_text(shape));
  return found;
}

/// Biases of all experts, (E, N) float32 with gate before up; empty without any.
Status read_biases(const StoredLinear& from, const char* suffix, std::vector<TensorView>& out,
                   LayerMemory& memory) {
  const LinearNames& names = from.names;
  const auto& [experts, n, k] = from.shape;
  if (!from.tensors.has(names.first[0] + suffix)) return Status::ok();
  if (names.stacked) {
    auto bias = read_floats(from.tensors, names.first[0] + suffix, {experts, n}, true, memory);
    if (!bias) return bias.status();
    out = {*bias};
    return Status::ok();
  }
  const int64_t parts = names.up.empty() ? 1 : 2;
  auto made = memory.take(experts * parts * n * static_cast<int64_t>(sizeof(float)));
  if (!made) return made.status();
  auto* at = reinterpret_cast<float*>(*made);
  out = {TensorView(at, DType::kFloat32, {experts, parts * n})};
  for (size_t e = 0; e < names.first.size(); ++e) {
    for (const auto* list : {&names.first, &names.up}) {
      if (list->empty()) continue;
      auto bias = read_floats(from.tensors, (*list)[e] + suffix, {n}, true, memory);
      if (!bias) return bias.status();
      at = std::copy_n(static_cast<const float*>(bias->data), n, at);
    }
  }
  return Status::ok();
}

/// One matrix (N, K) per expert, with the scales of blocks where they are there.
Result<LinearWeights> read_matrices(const StoredLinear& from, LayerMemory& memory) {
  const auto& [experts, n, k] = from.shape;
  const TensorSet& tensors = from.tensors;
  LinearWeights result;
  result.k_last = true;
  const bool blocks = tensors.has(from.names.first[0] + ".weight" + kBlockScales);
  if (blocks) result.scale_group = kBlock;
  const int64_t rows = blocks_of(n), columns = blocks_of(k);
  const int64_t parts = from.names.up.empty() ? 1 : 2;
  for (size_t e = 0; e < from.names.first.size(); ++e) {
    float* scales = nullptr;  // of the expert, gate before up
    if (blocks) {
      auto made = memory.take(parts * rows * columns * static_cast<int64_t>(sizeof(float)));
      if (!made) return made.status();
      scales = reinterpret_cast<float*>(*made);
      result.scale.push_back(TensorView(scales, DType::kFloat32, {parts * rows, columns}));
    }
    for (const auto& [list, out] :
         {std::pair(&from.names.first, &result.weight), std::pair(&from.names.up, &result.up)}) {
      if (list->empty()) continue;
      const std::string name = (*list)[e] + ".weight";
      auto found = find_shaped(tensors, name, {n, k});
      if (!found) return found.status();
      auto weight = as_weights(*found, memory);
      if (!weight) return weight.status();
      out->push_back(*weight);
      if (!blocks) continue;
      auto scale = find_shaped(tensors, name + kBlockScales, {rows, columns});
      if (!scale) return scale.status();
      if (!is_float(scale->dtype)) return wrong_type(name + kBlockScales, *scale, "float32");
      for (int64_t i = 0; i < rows * columns; ++i) *scales++ = element(*scale, i);
    }
  }
  MEGAMOE_RETURN_IF_ERROR(read_biases(from, ".bias", result.bias, memory));
  return result;
}

/// One tensor for all experts, (E, N, K) or (E, K, N); which of the two, where sizes are equal, its caller
/// knows.
Result<LinearWeights> read_stacked(const StoredLinear& from, LayerMemory& memory) {
  const auto& [experts, n, k] = from.shape;
  const std::string& name = from.names.first[0];
  auto found = from.tensors.find(name);
  if (!found) return found.status();
  const bool last = has_shape(*found, {experts, n, k});
  if (!last && !has_shape(*found, {experts, k, n})) {
    return wrong_shape(name, *found,
                       shape_text({experts, n, k}) + " (output, input) or both tensors (input, output)");
  }
  LinearWeights result;
  result.k_last = last;
  auto weight = as_weights(*found, memory);
  if (!weight) return weight.status();
  result.weight = {*weight};
  if (from.tensors.has(name + kBlockScales)) {
    auto scale =
        read_floats(from.tensors, name + kBlockScales, {experts, blocks_of(n), blocks_of(k)}, true, memory);
    if (!scale) return scale.status();
    result.scale = {*scale};
    result.scale_group = kBlock;
  }
  MEGAMOE_RETURN_IF_ERROR(read_biases(from, "_bias", result.bias, memory));
  return result;
}

/// MXFP4: blocks (E, N, K / 32, 16) of two codes a byte, the first in the low half, and scales (E, N, K /
/// 32).
Result<LinearWeights> read_mx(const StoredLinear& from, LayerMemory& memory) {
  const auto& [experts, n, k] = from.shape;
  const std::string blocks = from.names.first[0] + "_blocks", scales = from.names.first[0] + "_scales";
  if (k % kMxGroup != 0) {
    return Status(Code::kUnsupported, "tensor '" + blocks + "' has a reduction of " + std::to_string(k) +
                                          ": expected a multiple of " + std::to_string(kMxGroup));
  }
  const int64_t groups = k / kMxGroup, pairs = base::ceil_div(groups, 2);
  auto codes = find_shaped(from.tensors, blocks, {experts, n, groups, kMxGroup / 2});
  if (!codes) return codes.status();
  if (codes->dtype != DType::kUInt8) return wrong_type(blocks, *codes, "uint8");
  auto scale = find_shaped(from.tensors, scales, {experts, n, groups});
  if (!scale) return scale.status();
  if (scale->dtype != DType::kUInt8 && scale->dtype != DType::kFloat8E8M0) {
    return wrong_type(scales, *scale, "uint8");
  }
  LinearWeights result;
  result.k_last = true;
  result.weight = {TensorView(codes->data, DType::kFloat4E2M1, {experts, n, k})};
  const void* data = scale->data;
  if (groups % 2 != 0) {  // the library keeps scales in pairs
    auto made = memory.take(experts * n * pairs * 2);
    if (!made) return made.status();
    const auto* in = static_cast<const std::byte*>(data);
    for (int64_t row = 0; row < experts * n; ++row) {
      std::copy_n(in + row * groups, groups, *made + row * pairs * 2);
    }
    data = *made;
  }
  result.scale = {TensorView(data, DType::kFloat8E8M0, {experts, n, pairs, 2})};
  MEGAMOE_RETURN_IF_ERROR(read_biases(from, "_bias", result.bias, memory));
  return result;
}

constexpr StoredForm kForms[] = {
    {".weight", false, read_matrices},
    {".qweight", false, read_words},
    {"", true, read_stacked},
    {"_blocks", true, read_mx},
};

}  // namespace

Result<std::byte*> LayerMemory::take(int64_t bytes) {
  auto made = base::Pages::allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1)), bytes >= (1 << 21));
  if (!made) return made.status();
  pages_.push_back(std::move(*made));
  return pages_.back().data();
}

bool has_shape(const TensorView& t, const std::vector<int64_t>& shape) {
  return t.dims == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), t.shape);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  TensorView t(nullptr, DType::kUInt8, {});
  for (const int64_t extent : shape) t.shape[t.dims++] = extent;
  return t.shape_text();
}

Status wrong_shape(const std::string& name, const TensorView& t, const std::string& expected) {
  return Status(Code::kDataLoss,
                "tensor '" + name + "' has shape " + t.shape_text() + ": expected " + expected);
}

const StoredForm* find_form(const TensorSet& tensors, const std::string& name, bool stacked) {
  for (const StoredForm& form : kForms) {
    if (form.stacked == stacked && tensors.has(name + form.suffix)) return &form;
  }
  return nullptr;
}

Result<LinearWeights> read_linear(const StoredLinear& from, LayerMemory& memory) {
  const std::string& name = from.names.first[0];
  const StoredForm* form = find_form(from.tensors, name, from.names.stacked);
  if (form == nullptr) {
    return from.tensors.find(name + (from.names.stacked ? "" : ".weight")).status();
  }
  return form->read(from, memory);
}

Result<TensorView> read_floats(const TensorSet& tensors, const std::string& name,
                               const std::vector<int64_t>& shape, bool required, LayerMemory& memory) {
  if (!required && !tensors.has(name)) return TensorView{};
  auto found = find_shaped(tensors, name, shape);
  if (!found) return found.status();
  if (!is_float(found->dtype)) return wrong_type(name, *found, "float32, float16 or bfloat16");
  if (found->dtype == DType::kFloat32) return found;
  auto made = memory.take(found->elements() * static_cast<int64_t>(sizeof(float)));
  if (!made) return made.status();
  auto* const out = reinterpret_cast<float*>(*made);
  for (int64_t i = 0; i < found->elements(); ++i) out[i] = element(*found, i);
  TensorView result = *found;
  result.data = out;
  result.dtype = DType::kFloat32;
  return result;
}

}  // namespace megamoe::checkpoint
