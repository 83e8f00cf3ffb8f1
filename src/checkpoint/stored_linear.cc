// The forms in which checkpoints store weights, but for those of words of integers.
#include "checkpoint/stored_linear.h"

#include <algorithm>

#include "format/bf16.h"

namespace megamoe::checkpoint {
namespace {

constexpr const char* kBlockScales = "_scale_inv";
constexpr const char* kChannelScales = "_scale";
constexpr const char* kChannelZeros = "_zero_point";
constexpr int64_t kBlock = 128;
constexpr int64_t kMxGroup = 32;

int64_t blocks_of(int64_t length) {
  return base::ceil_div(length, kBlock);
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

/// Biases of all experts, (E, N) float32 with gate before up; empty without any.
Status read_biases(const StoredLinear& from, const char* suffix, std::vector<TensorView>& out,
                   LayerMemory& memory) {
  const LinearNames& names = from.names;
  const auto& [experts, n, k] = from.shape;
  const auto there = [&](const std::string& name) { return from.tensors.has(name + suffix); };
  if (std::none_of(names.first.begin(), names.first.end(), there) &&
      std::none_of(names.up.begin(), names.up.end(), there)) {
    return Status::ok();
  }
  if (names.stacked) {
    auto bias = find_floats(from.tensors, names.first[0] + suffix, names.owners[0], {experts, n}, memory);
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
      auto bias = find_floats(from.tensors, (*list)[e] + suffix, names.owners[e], {n}, memory);
      if (!bias) return bias.status();
      at = std::copy_n(static_cast<const float*>(bias->data), n, at);
    }
  }
  return Status::ok();
}

/// What stands beside a matrix of a type.
struct Scaled {
  DType weights;
  const char* suffix;  ///< of its scales, behind ".weight"
  bool blocks;         ///< one for each 128 x 128, else one for each output
};
constexpr Scaled kScaled[] = {{DType::kFloat8E4M3, kBlockScales, true},
                              {DType::kInt8, kChannelScales, false}};

/// The row of a type, null for one without scales.
const Scaled* scaled_as(DType type) {
  const auto* row = std::find_if(std::begin(kScaled), std::end(kScaled),
                                 [&](const Scaled& scaled) { return scaled.weights == type; });
  return row == std::end(kScaled) ? nullptr : row;
}

/// Refuses scales and zero points that no scenario has.
Status refuse_beside(const TensorSet& tensors, const std::string& name, const Scaled* scaled) {
  const bool blocks = scaled != nullptr && scaled->blocks;
  if (blocks && !tensors.has(name + kBlockScales) && tensors.has(name + kChannelScales)) {
    return tensor_error(tensors, name + kChannelScales,
                        "scales float8_e4m3fn: expected '" + name + kBlockScales + "' of 128 x 128 blocks",
                        Code::kUnsupported);
  }
  if (tensors.has(name + kChannelZeros)) {
    return tensor_error(tensors, name + kChannelZeros, "is there: expected none, symmetric weights",
                        Code::kUnsupported);
  }
  if (scaled != nullptr) return Status::ok();
  for (const char* suffix : {kBlockScales, kChannelScales}) {
    if (!tensors.has(name + suffix)) continue;
    auto found = tensors.find(name);
    if (!found) return found.status();
    return wrong_type(tensors, name, *found, "float8_e4m3fn or int8 beside '" + name + suffix + "'");
  }
  return Status::ok();
}

/// Scales of one matrix (n, k) behind `out`, which moves on.
Status read_scales(const StoredLinear& from, const std::string& name, const std::string& owner,
                   const Scaled& scaled, LayerMemory& memory, float*& out) {
  const auto& [experts, n, k] = from.shape;
  const std::vector<int64_t> shape =
      scaled.blocks ? std::vector<int64_t>{blocks_of(n), blocks_of(k)} : std::vector<int64_t>{n, 1};
  auto scale = find_floats(from.tensors, name + scaled.suffix, owner, shape, memory);
  if (!scale) return scale.status();
  out = std::copy_n(static_cast<const float*>(scale->data), shape[0] * shape[1], out);
  return Status::ok();
}

/// One matrix (N, K) per expert, with its scales where its type has some.
Result<LinearWeights> read_matrices(const StoredLinear& from, LayerMemory& memory) {
  const auto& [experts, n, k] = from.shape;
  const LinearNames& names = from.names;
  const TensorSet& tensors = from.tensors;
  LinearWeights result;
  result.k_last = true;
  const int64_t parts = names.up.empty() ? 1 : 2;
  const std::string first_name = names.first[0] + from.form.suffix;
  auto first = find_tensor(tensors, first_name, names.owners[0]);
  if (!first) return first.status();
  const Scaled* const scaled = scaled_as(first->dtype);
  float* scales = nullptr;  // of all experts, gate before up in each
  if (scaled != nullptr) {
    const int64_t rows = parts * (scaled->blocks ? blocks_of(n) : n),
                  columns = scaled->blocks ? blocks_of(k) : 1;
    auto made = memory.take(experts * rows * columns * static_cast<int64_t>(sizeof(float)));
    if (!made) return made.status();
    scales = reinterpret_cast<float*>(*made);
    if (scaled->blocks) {
      result.scale_group = kBlock;
      result.scale = {TensorView(scales, DType::kFloat32, {experts, rows, columns})};
    } else {
      result.scale = {TensorView(scales, DType::kFloat32, {experts, rows})};
    }
  }
  for (size_t e = 0; e < names.first.size(); ++e) {
    for (const auto& [list, out] :
         {std::pair(&names.first, &result.weight), std::pair(&names.up, &result.up)}) {
      if (list->empty()) continue;
      const std::string name = (*list)[e] + from.form.suffix;
      auto found = find_tensor(tensors, name, names.owners[e]);
      if (!found) return found.status();
      if (scaled != nullptr && found->dtype != scaled->weights) {
        return wrong_type(tensors, name, *found,
                          dtype_name(scaled->weights) + (" like '" + first_name + "'"));
      }
      MEGAMOE_RETURN_IF_ERROR(refuse_beside(tensors, name, scaled));
      if (scaled == nullptr) {
        found = find_tensor(tensors, name, names.owners[e], {n, k}, kFloatTypes);
        if (!found) return found.status();
      } else if (!has_shape(*found, {n, k})) {
        return wrong_shape(tensors, name, *found, shape_text({n, k}));
      }
      auto weight = as_weights(*found, memory);
      if (!weight) return weight.status();
      out->push_back(*weight);
      if (scaled == nullptr) continue;
      MEGAMOE_RETURN_IF_ERROR(read_scales(from, name, names.owners[e], *scaled, memory, scales));
    }
  }
  MEGAMOE_RETURN_IF_ERROR(read_biases(from, ".bias", result.bias, memory));
  return result;
}

/// One tensor for all experts, (E, N, K) or (E, K, N); which of the two, where sizes are equal, its caller
/// knows.
Result<LinearWeights> read_stacked(const StoredLinear& from, LayerMemory& memory) {
  const auto& [experts, n, k] = from.shape;
  const TensorSet& tensors = from.tensors;
  const std::string &name = from.names.first[0], &owner = from.names.owners[0];
  auto found = find_tensor(tensors, name, owner);
  if (!found) return found.status();
  const bool last = has_shape(*found, {experts, n, k});
  if (!last && !has_shape(*found, {experts, k, n})) {
    return wrong_shape(tensors, name, *found,
                       shape_text({experts, n, k}) + " (output, input) or both tensors (input, output)");
  }
  LinearWeights result;
  result.k_last = last;
  const bool blocks = found->dtype == DType::kFloat8E4M3;
  if (!blocks) {
    MEGAMOE_RETURN_IF_ERROR(refuse_beside(tensors, name, nullptr));
    found =
        find_tensor(tensors, name, owner, {found->shape[0], found->shape[1], found->shape[2]}, kFloatTypes);
    if (!found) return found.status();
  }
  auto weight = as_weights(*found, memory);
  if (!weight) return weight.status();
  result.weight = {*weight};
  if (blocks) {
    auto scale =
        find_floats(tensors, name + kBlockScales, owner, {experts, blocks_of(n), blocks_of(k)}, memory);
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
  const std::string& owner = from.names.owners[0];
  if (k % kMxGroup != 0) {
    return tensor_error(
        from.tensors, blocks,
        "has a reduction of " + std::to_string(k) + ": expected a multiple of " + std::to_string(kMxGroup),
        Code::kUnsupported);
  }
  const int64_t groups = k / kMxGroup, pairs = base::ceil_div(groups, 2);
  auto codes = find_tensor(from.tensors, blocks, owner, {experts, n, groups, kMxGroup / 2}, {DType::kUInt8});
  if (!codes) return codes.status();
  auto scale =
      find_tensor(from.tensors, scales, owner, {experts, n, groups}, {DType::kUInt8, DType::kFloat8E8M0});
  if (!scale) return scale.status();
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
    {".weight", false, {".weight_scale_inv", nullptr}, read_matrices},
    {".qweight", false, {".qzeros", ".scales"}, read_words},
    {".weight_packed", false, {".weight_shape", nullptr}, read_words},
    {"", true, {"_scale_inv", nullptr}, read_stacked},
    {"_blocks", true, {"_scales", nullptr}, read_mx},
};

}  // namespace

Result<const StoredForm*> find_form(const TensorSet& tensors, const LinearNames& names,
                                    const StoredForm* otherwise) {
  const StoredForm* found = nullptr;
  std::string shown_by;
  const std::vector<std::string>* const lists[] = {&names.first, &names.up};
  for (const auto* list : lists) {
    for (const std::string& name : *list) {
      for (const StoredForm& form : kForms) {
        const std::string tensor = name + form.suffix;
        if (form.stacked != names.stacked || !tensors.has(tensor)) continue;
        if (found == nullptr) {
          found = &form;
          shown_by = tensor;
        }
        if (found == &form) continue;
        return tensor_error(tensors, tensor, "is there beside '" + shown_by + "': expected one form for all");
      }
    }
  }
  if (found != nullptr) return found;
  for (const auto* list : lists) {
    for (const std::string& name : *list) {
      for (const StoredForm& form : kForms) {
        for (const char* beside : form.beside) {
          if (form.stacked == names.stacked && beside != nullptr && tensors.has(name + beside)) return &form;
        }
      }
    }
  }
  if (otherwise != nullptr) return otherwise;
  return std::find_if(std::begin(kForms), std::end(kForms),
                      [&](const StoredForm& form) { return form.stacked == names.stacked; });
}

Result<LinearWeights> read_linear(const StoredLinear& from, LayerMemory& memory) {
  return from.form.read(from, memory);
}

}  // namespace megamoe::checkpoint
