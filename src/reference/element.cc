// Texts of wrong types and shapes.
#include "reference/element.h"

namespace megamoe::reference {

Status check_type(const TensorView& tensor, const std::string& name, const std::vector<DType>& types) {
  std::string expected;
  size_t left = types.size();
  for (DType type : types) {
    if (tensor.dtype == type) return Status::ok();
    expected += (expected.empty() ? "" : left == 1 ? " or " : ", ") + std::string(dtype_name(type));
    --left;
  }
  if (!tensor.present()) return Status(Code::kInvalidArgument, name + " is missing: expected " + expected);
  return Status(Code::kInvalidType,
                name + " has type " + dtype_name(tensor.dtype) + ": expected " + expected);
}

Status check_shape(const TensorView& tensor, const std::string& name, const std::vector<int64_t>& shape) {
  bool matches = tensor.dims == static_cast<int>(shape.size());
  std::string expected = "(";
  int i = 0;
  for (int64_t extent : shape) {
    if (matches) matches = tensor.shape[i] >= 0 && (extent < 0 || tensor.shape[i] == extent);
    expected += (i ? ", " : "") + (extent < 0 ? "*" : std::to_string(extent));
    ++i;
  }
  expected += i == 1 ? ",)" : ")";
  if (!matches) {
    return Status(Code::kInvalidArgument,
                  name + " has shape " + tensor.shape_text() + ": expected " + expected);
  }
  if (tensor.data == nullptr && tensor.elements() != 0) {
    return Status(Code::kInvalidArgument, name + " = null: expected memory of shape " + tensor.shape_text());
  }
  return Status::ok();
}

Status check_plain(const TensorView& tensor, const std::string& name) {
  if (tensor.layout == Layout::kNd) return Status::ok();
  return Status(Code::kInvalidArgument, name + " has layout " + layout_name(tensor.layout) + ": expected ND");
}

Status check_tensor(const TensorView& tensor, const std::string& name, const std::vector<int64_t>& shape) {
  MEGAMOE_RETURN_IF_ERROR(check_plain(tensor, name));
  return check_shape(tensor, name, shape);
}

Status check_pairs(const TensorView& tensor, const std::string& name) {
  if (dtype_bits(tensor.dtype) != 4 || tensor.layout != Layout::kNd || tensor.elements() == 0) {
    return Status::ok();
  }
  const int last = tensor.dims - 1;
  bool pairs = tensor.shape[last] % 2 == 0 && tensor.strides[last] == 1;
  for (int d = 0; d < last; ++d) pairs = pairs && (tensor.shape[d] == 1 || tensor.strides[d] % 2 == 0);
  if (pairs) return Status::ok();
  return Status(Code::kInvalidArgument, name + " has shape " + tensor.shape_text() +
                                            ": expected rows of whole bytes, two elements of " +
                                            dtype_name(tensor.dtype) + " in each");
}

}  // namespace megamoe::reference
