// Rows and elements of float tensors with any strides, and the checks that the operators share which add rows
// up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernel/contract.h"
#include "megamoe/tensor.h"
#include "route/sort.h"

namespace megamoe::route {

/// float32, float16 or bfloat16.
Status check_real(const TensorView& tensor, const std::string& name);
/// (F,) int32 or int64 with F a multiple of `topk`.
Status check_sorted_indices(const TensorView& indices, int64_t topk, const std::string& topk_name);
kernel::RowType row_type(DType dtype);
/// An element of a float32, float16 or bfloat16 tensor.
float read_real(const TensorView& tensor, int64_t element);
void write_real(const TensorRef& tensor, int64_t element, float value);

/// Rows of a tensor as contiguous memory: in place where columns lie side by side, else copied one by one
/// into `slots` buffers of this reader.
class RowReader {
 public:
  explicit RowReader(const TensorView& tensor, int64_t slots = 1);
  const std::byte* row(int64_t index, int64_t slot = 0);

 private:
  TensorView tensor_;
  int64_t bytes_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace megamoe::route
