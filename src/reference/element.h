// Elements of strided tensors, and the checks that make it safe to read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/bf16.h"
#include "format/float16.h"
#include "megamoe/tensor.h"

namespace megamoe::reference {

/// Type is one of `types`: "x has type int8: expected bfloat16 or float32".
Status check_type(const TensorView& tensor, const std::string& name, const std::vector<DType>& types);
/// Shape is `shape` (-1 = any extent) and memory is given where there are elements.
Status check_shape(const TensorView& tensor, const std::string& name, const std::vector<int64_t>& shape);
/// The layout is ND.
Status check_plain(const TensorView& tensor, const std::string& name);
/// check_shape of a tensor that must be in plain layout.
Status check_tensor(const TensorView& tensor, const std::string& name, const std::vector<int64_t>& shape);
/// Rows of a 4-bit type in plain layout begin at a byte and have no gaps; other tensors pass.
Status check_pairs(const TensorView& tensor, const std::string& name);

/// Element offsets by index, for tensors in plain layout.
template <class Void>
int64_t offset(const BasicTensor<Void>& tensor, int64_t i) {
  return i * tensor.strides[0];
}
template <class Void>
int64_t offset(const BasicTensor<Void>& tensor, int64_t i, int64_t j) {
  return i * tensor.strides[0] + j * tensor.strides[1];
}

template <class T>
const T& element(const TensorView& tensor, int64_t offset) {
  return static_cast<const T*>(tensor.data)[offset];
}
template <class T>
T& element(const TensorRef& tensor, int64_t offset) {
  return static_cast<T*>(tensor.data)[offset];
}

/// An element of a bfloat16, float16 or float32 tensor.
inline float read_real(const TensorView& tensor, int64_t offset) {
  if (tensor.dtype == DType::kFloat16) return format::f16_to_float(element<uint16_t>(tensor, offset));
  return tensor.dtype == DType::kBFloat16 ? format::bf16_to_float(element<uint16_t>(tensor, offset))
                                          : element<float>(tensor, offset);
}

/// An element of an int32 or int64 tensor.
inline int64_t read_index(const TensorView& tensor, int64_t offset) {
  return tensor.dtype == DType::kInt32 ? element<int32_t>(tensor, offset) : element<int64_t>(tensor, offset);
}

}  // namespace megamoe::reference
