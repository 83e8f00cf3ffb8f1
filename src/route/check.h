// Checks that every routing operator makes of its tensors, and their texts.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::route {

/// "quant_mode = 10: expected ..."
Status wrong_value(const std::string& name, const std::string& got, const std::string& expected);
inline Status wrong_value(const std::string& name, int64_t got, const std::string& expected) {
  return wrong_value(name, std::to_string(got), expected);
}
/// "sorted_indices[3]" or "expert_idx[3][1]" for slot 1 of row 3, as the tensor has dimensions.
std::string element_name(const std::string& name, int dims, int64_t row, int64_t slot);

/// Type is one of `types`.
Status check_type(const TensorView& tensor, const std::string& name, std::initializer_list<DType> types);
/// Plain layout, shape `shape` (-1 = any extent) and fewer than 2^63 bytes; 4-bit rows are whole bytes.
Status check_shape(const TensorView& tensor, const std::string& name, std::initializer_list<int64_t> shape);
/// Memory is given where there are elements.
Status check_memory(const TensorView& tensor, const std::string& name);
/// An optional tensor that this call does not take is absent.
Status check_absent(const TensorView& tensor, const std::string& name, const std::string& why);

/// An output without memory; an error when no memory could hold it.
Result<TensorRef> describe_output(const std::string& name, DType dtype, std::initializer_list<int64_t> shape);
/// `given` is what `wanted` describes, contiguous and with memory.
Status check_output(const TensorRef& given, const TensorRef& wanted, const std::string& name);

/// Bytes of `elements` neighbouring elements.
inline int64_t bytes_of(DType dtype, int64_t elements) {
  return (elements * dtype_bits(dtype) + 7) / 8;
}
/// Address of row `row` of a tensor of rows.
inline const std::byte* row_at(const TensorView& tensor, int64_t row) {
  return static_cast<const std::byte*>(tensor.data) + row * tensor.strides[0] * dtype_bits(tensor.dtype) / 8;
}

}  // namespace megamoe::route
