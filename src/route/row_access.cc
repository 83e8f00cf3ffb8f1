// Checks and access of rows that are added up.
#include "route/row_access.h"

#include <cstring>

#include "format/bf16.h"
#include "format/float16.h"
#include "route/check.h"

namespace megamoe::route {
namespace {

template <class T>
void gather(const std::byte* from, int64_t stride, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), from + i * stride * static_cast<int64_t>(sizeof(T)),
                sizeof(T));
  }
}

}  // namespace

Status check_real(const TensorView& tensor, const std::string& name) {
  return check_type(tensor, name, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
}

Status check_sorted_indices(const TensorView& indices, int64_t topk, const std::string& topk_name) {
  MEGAMOE_RETURN_IF_ERROR(check_type(indices, "sorted_indices", {DType::kInt32, DType::kInt64}));
  MEGAMOE_RETURN_IF_ERROR(check_shape(indices, "sorted_indices", {-1}));
  if (indices.shape[0] % topk == 0) return Status::ok();
  return Status(Code::kInvalidArgument, "sorted_indices has shape " + indices.shape_text() +
                                            ": expected a multiple of " + topk_name + " = " +
                                            std::to_string(topk));
}

kernel::RowType row_type(DType dtype) {
  return dtype == DType::kFloat32   ? kernel::RowType::kFloat32
         : dtype == DType::kFloat16 ? kernel::RowType::kFloat16
                                    : kernel::RowType::kBf16;
}

float read_real(const TensorView& tensor, int64_t element) {
  switch (tensor.dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(tensor.data)[element];
    case DType::kFloat16:
      return format::f16_to_float(static_cast<const uint16_t*>(tensor.data)[element]);
    default:
      return format::bf16_to_float(static_cast<const uint16_t*>(tensor.data)[element]);
  }
}

void write_real(const TensorRef& tensor, int64_t element, float value) {
  switch (tensor.dtype) {
    case DType::kFloat32:
      static_cast<float*>(tensor.data)[element] = value;
      break;
    case DType::kFloat16:
      static_cast<uint16_t*>(tensor.data)[element] = format::f16_from_float(value);
      break;
    default:
      static_cast<uint16_t*>(tensor.data)[element] = format::bf16_from_float(value);
  }
}

RowReader::RowReader(const TensorView& tensor, int64_t slots) : tensor_(tensor) {
  if (!tensor.present() || tensor.shape[1] < 2 || tensor.strides[1] == 1) return;
  bytes_ = bytes_of(tensor.dtype, tensor.shape[1]);
  buffer_.resize(static_cast<size_t>(bytes_ * slots));
}

const std::byte* RowReader::row(int64_t index, int64_t slot) {
  const std::byte* const at = row_at(tensor_, index);
  if (buffer_.empty()) return at;
  std::byte* const copy = buffer_.data() + slot * bytes_;
  switch (dtype_bits(tensor_.dtype)) {
    case 8:
      gather<uint8_t>(at, tensor_.strides[1], tensor_.shape[1], copy);
      break;
    case 16:
      gather<uint16_t>(at, tensor_.strides[1], tensor_.shape[1], copy);
      break;
    default:
      gather<uint32_t>(at, tensor_.strides[1], tensor_.shape[1], copy);
  }
  return copy;
}

}  // namespace megamoe::route
