// Texts of wrong types, shapes and outputs.
#include "route/check.h"

#include <algorithm>
#include <limits>

#include "base/quoted.h"
#include "base/strides.h"

namespace megamoe::route {
namespace {

std::string extents(std::initializer_list<int64_t> shape) {
  std::string text = "(";
  for (const int64_t* extent = shape.begin(); extent != shape.end(); ++extent) {
    text += (extent == shape.begin() ? "" : ", ") + (*extent < 0 ? "*" : std::to_string(*extent));
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

/// Bytes of a contiguous tensor fit into 63 bits.
bool fits(const TensorView& tensor) {
  int64_t bits = dtype_bits(tensor.dtype);
  for (int i = 0; i < tensor.dims; ++i) {
    if (tensor.shape[i] == 0) return true;
  }
  for (int i = 0; i < tensor.dims; ++i) {
    if (__builtin_mul_overflow(bits, tensor.shape[i], &bits)) return false;
  }
  return true;
}

Status too_large(const TensorView& tensor, const std::string& name) {
  return Status(Code::kInvalidArgument,
                name + " has shape " + tensor.shape_text() + ": expected fewer than 2^60 bytes");
}

}  // namespace

Status wrong_value(const std::string& name, const std::string& got, const std::string& expected) {
  return Status(Code::kInvalidArgument, name + " = " + base::shortened(got) + ": expected " + expected);
}

std::string element_name(const std::string& name, int dims, int64_t row, int64_t slot) {
  const std::string text = name + "[" + std::to_string(row) + "]";
  return dims < 2 ? text : text + "[" + std::to_string(slot) + "]";
}

Status check_type(const TensorView& tensor, const std::string& name, std::initializer_list<DType> types) {
  std::string expected;
  for (const DType* type = types.begin(); type != types.end(); ++type) {
    if (tensor.dtype == *type) return Status::ok();
    expected += (expected.empty() ? "" : type + 1 == types.end() ? " or " : ", ");
    expected += dtype_name(*type);
  }
  if (!tensor.present()) return Status(Code::kInvalidArgument, name + " is missing: expected " + expected);
  return Status(Code::kInvalidType,
                name + " has type " + dtype_name(tensor.dtype) + ": expected " + expected);
}

Status check_shape(const TensorView& tensor, const std::string& name, std::initializer_list<int64_t> shape) {
  if (tensor.layout != Layout::kNd) {
    return Status(Code::kInvalidArgument,
                  name + " has layout " + layout_name(tensor.layout) + ": expected ND");
  }
  bool matches = tensor.dims == static_cast<int>(shape.size());
  for (int i = 0; matches && i < tensor.dims; ++i) {
    const int64_t extent = shape.begin()[i];
    matches = tensor.shape[i] >= 0 && (extent < 0 || tensor.shape[i] == extent);
  }
  if (!matches) {
    return Status(Code::kInvalidArgument,
                  name + " has shape " + tensor.shape_text() + ": expected " + extents(shape));
  }
  if (!fits(tensor)) return too_large(tensor, name);
  MEGAMOE_RETURN_IF_ERROR(base::check_strides(tensor, name));
  if (dtype_bits(tensor.dtype) >= 8 || tensor.elements() == 0) return Status::ok();
  const int last = tensor.dims - 1;
  if (tensor.shape[last] % 2 != 0) {
    return Status(Code::kInvalidArgument, name + " has shape " + tensor.shape_text() +
                                              ": expected an even last dimension with type " +
                                              dtype_name(tensor.dtype));
  }
  const bool whole_bytes =
      std::all_of(tensor.strides, tensor.strides + last, [](int64_t stride) { return stride % 2 == 0; });
  if (tensor.strides[last] != 1 || !whole_bytes) {
    return Status(Code::kInvalidArgument, name +
                                              " has strides that split bytes: expected contiguous rows that "
                                              "begin at whole bytes with type " +
                                              dtype_name(tensor.dtype));
  }
  return Status::ok();
}

Status check_memory(const TensorView& tensor, const std::string& name) {
  if (!tensor.present() || tensor.data != nullptr || tensor.elements() == 0) return Status::ok();
  return wrong_value(name, "null", "memory of shape " + tensor.shape_text());
}

Status check_absent(const TensorView& tensor, const std::string& name, const std::string& why) {
  if (!tensor.present()) return Status::ok();
  return Status(Code::kInvalidArgument,
                name + " has type " + dtype_name(tensor.dtype) + ": expected no " + name + " " + why);
}

Result<TensorRef> describe_output(const std::string& name, DType dtype,
                                  std::initializer_list<int64_t> shape) {
  TensorRef output;
  output.dtype = dtype;
  output.dims = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), output.shape);
  if (!fits(view(output))) return too_large(view(output), name);
  output.set_contiguous();
  return output;
}

Status check_output(const TensorRef& given, const TensorRef& wanted, const std::string& name) {
  if (!wanted.present()) return check_absent(view(given), name, "with these arguments");
  if (!given.present()) {
    return Status(Code::kInvalidArgument,
                  name + " is missing: expected " + dtype_name(wanted.dtype) + " " + wanted.shape_text());
  }
  MEGAMOE_RETURN_IF_ERROR(check_type(view(given), name, {wanted.dtype}));
  if (given.layout != Layout::kNd) {
    return Status(Code::kInvalidArgument,
                  name + " has layout " + layout_name(given.layout) + ": expected ND");
  }
  if (given.dims != wanted.dims || !std::equal(wanted.shape, wanted.shape + wanted.dims, given.shape)) {
    return Status(Code::kInvalidArgument,
                  name + " has shape " + given.shape_text() + ": expected " + wanted.shape_text());
  }
  if (given.elements() != 0 && !given.is_contiguous()) {
    return Status(Code::kInvalidArgument, name + " is not contiguous: expected contiguous memory");
  }
  return check_memory(view(given), name);
}

}  // namespace megamoe::route
