// Texts of wrong types, shapes and layouts of tensor arguments.
#include "format/check.h"

#include <algorithm>

#include "base/strides.h"

namespace megamoe::format {

std::string type_list(const std::vector<DType>& types) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == types.size() ? " or " : ", ") + std::string(dtype_name(types[i]));
  }
  return text;
}

Status check_type(const TensorView& tensor, const char* name, const std::vector<DType>& types) {
  if (std::find(types.begin(), types.end(), tensor.dtype) != types.end()) return Status::ok();
  if (!tensor.present()) {
    return Status(Code::kInvalidArgument, std::string(name) + " is missing: expected " + type_list(types));
  }
  return Status(Code::kInvalidType, std::string(name) + " has type " + dtype_name(tensor.dtype) +
                                        ": expected " + type_list(types));
}

Status check_extents(const TensorView& tensor, const char* name) {
  if (tensor.dims < 0 || tensor.dims > kMaxDims) {
    return Status(Code::kInvalidArgument, std::string(name) + " has " + std::to_string(tensor.dims) +
                                              " dimensions: expected at most " + std::to_string(kMaxDims));
  }
  // Even in bits, with the 16 rows a fractal layout may round up to.
  int64_t bits = int64_t{64} * 16 * 64;
  bool empty = false, fits = true;
  for (int i = 0; i < tensor.dims; ++i) {
    if (tensor.shape[i] < 0) return wrong_shape(tensor, name, "extents of 0 or more");
    empty |= tensor.shape[i] == 0;
    if (tensor.shape[i] > 0) fits &= !__builtin_mul_overflow(bits, tensor.shape[i], &bits);
  }
  if (!empty && !fits) return wrong_shape(tensor, name, "a size that memory can hold");
  if (!empty && tensor.data == nullptr) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " = null: expected memory of shape " + tensor.shape_text());
  }
  return base::check_strides(tensor, name);
}

Status check_plain(const TensorView& tensor, const char* name) {
  MEGAMOE_RETURN_IF_ERROR(check_extents(tensor, name));
  if (tensor.layout != Layout::kNd) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " has layout " + layout_name(tensor.layout) + ": expected ND");
  }
  const int last = tensor.dims - 1;
  if (dtype_bits(tensor.dtype) == 4 && last >= 0 && tensor.shape[last] > 1 && tensor.strides[last] != 1) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " has stride " + std::to_string(tensor.strides[last]) +
                      " in its last dimension: expected 1 for " + dtype_name(tensor.dtype));
  }
  return Status::ok();
}

Status wrong_shape(const TensorView& tensor, const char* name, const std::string& expected) {
  return Status(Code::kInvalidArgument,
                std::string(name) + " has shape " + tensor.shape_text() + ": expected " + expected);
}

Status check_same_shape(const TensorView& tensor, const char* name, const TensorView& like) {
  const bool same =
      tensor.dims == like.dims && std::equal(tensor.shape, tensor.shape + tensor.dims, like.shape);
  return same ? Status::ok() : wrong_shape(tensor, name, like.shape_text());
}

}  // namespace megamoe::format
