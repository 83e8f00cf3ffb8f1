// The reach of strides, in checked arithmetic.
#include "base/strides.h"

namespace megamoe::base {

std::string strides_text(const TensorView& tensor) {
  std::string text = "(";
  for (int d = 0; d < tensor.dims; ++d) text += (d == 0 ? "" : ", ") + std::to_string(tensor.strides[d]);
  return text + (tensor.dims == 1 ? ",)" : ")");
}

Status check_strides(const TensorView& tensor, std::string_view name) {
  constexpr int64_t kMostBits = int64_t{1} << 59;
  if (tensor.layout != Layout::kNd || tensor.dims < 0 || tensor.dims > kMaxDims) return Status::ok();
  for (int d = 0; d < tensor.dims; ++d) {
    if (tensor.shape[d] <= 0) return Status::ok();
  }
  if (tensor.is_contiguous()) return Status::ok();
  int64_t bits = 0;
  bool fits = true;
  for (int d = 0; fits && d < tensor.dims; ++d) {
    int64_t step = 0;
    fits = !__builtin_mul_overflow(tensor.shape[d] - 1, tensor.strides[d], &step) &&
           !__builtin_mul_overflow(step, int64_t{dtype_bits(tensor.dtype)}, &step) && step <= kMostBits &&
           step >= -kMostBits;
    if (fits) bits += step < 0 ? -step : step;  // at most kMaxDims times the bound: no overflow
  }
  if (fits && bits <= kMostBits) return Status::ok();
  return Status(Code::kInvalidArgument, std::string(name) + " has strides " + strides_text(tensor) +
                                            ": expected elements within 2^56 bytes");
}

}  // namespace megamoe::base
