// Looks tensors up and checks them.
#include "checkpoint/find_tensor.h"

#include <algorithm>

#include "format/bf16.h"
#include "format/float16.h"

namespace megamoe::checkpoint {
namespace {

std::string names_of(std::initializer_list<DType> types) {
  std::string names;
  for (const DType* type = types.begin(); type != types.end(); ++type) {
    names += (type == types.begin() ? "" : type + 1 == types.end() ? " or " : ", ");
    names += dtype_name(*type);
  }
  return names;
}

}  // namespace

Result<std::byte*> LayerMemory::take(int64_t bytes) {
  auto made = base::Pages::allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1)), bytes >= (1 << 21));
  if (!made) return made.status();
  pages_.push_back(std::move(*made));
  return pages_.back().data();
}

Result<TensorView> find_tensor(const TensorSet& tensors, const std::string& name, const std::string& owner) {
  if (tensors.has(name)) return tensors.find(name);
  return Status(Code::kDataLoss,
                tensors.source() + ": tensor '" + name + "' is missing: expected for " + owner);
}

Result<TensorView> find_tensor(const TensorSet& tensors, const std::string& name, const std::string& owner,
                               const std::vector<int64_t>& shape, std::initializer_list<DType> types) {
  auto found = find_tensor(tensors, name, owner);
  if (!found) return found;
  if (std::find(types.begin(), types.end(), found->dtype) == types.end()) {
    return wrong_type(tensors, name, *found, names_of(types));
  }
  if (!has_shape(*found, shape)) return wrong_shape(tensors, name, *found, shape_text(shape));
  return found;
}

Result<TensorView> find_floats(const TensorSet& tensors, const std::string& name, const std::string& owner,
                               const std::vector<int64_t>& shape, LayerMemory& memory) {
  auto found = find_tensor(tensors, name, owner, shape, kFloatTypes);
  if (!found || found->dtype == DType::kFloat32) return found;
  auto made = memory.take(found->elements() * static_cast<int64_t>(sizeof(float)));
  if (!made) return made.status();
  auto* const out = reinterpret_cast<float*>(*made);
  for (int64_t i = 0; i < found->elements(); ++i) out[i] = element(*found, i);
  found->data = out;
  found->dtype = DType::kFloat32;
  return found;
}

Status tensor_error(const TensorSet& tensors, const std::string& name, const std::string& what, Code code) {
  return Status(code, tensors.file_of(name) + ": tensor '" + name + "' " + what);
}

Status wrong_shape(const TensorSet& tensors, const std::string& name, const TensorView& t,
                   const std::string& expected) {
  return tensor_error(tensors, name, "has shape " + t.shape_text() + ": expected " + expected);
}

Status wrong_type(const TensorSet& tensors, const std::string& name, const TensorView& t,
                  const std::string& expected) {
  return tensor_error(tensors, name,
                      std::string("has type ") + dtype_name(t.dtype) + ": expected " + expected);
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

bool has_shape(const TensorView& t, const std::vector<int64_t>& shape) {
  return t.dims == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), t.shape);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  TensorView t(nullptr, DType::kUInt8, {});
  for (const int64_t extent : shape) t.shape[t.dims++] = extent;
  return t.shape_text();
}

}  // namespace megamoe::checkpoint
