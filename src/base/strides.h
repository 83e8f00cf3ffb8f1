// Whether strides lead to places that memory can have.
#pragma once

#include <string>
#include <string_view>

#include "megamoe/tensor.h"

namespace megamoe::base {

/// "(8192, 64, 1)"
std::string strides_text(const TensorView& tensor);

/// Elements of a plain tensor lie within 2^56 bytes, so that every later product of an index and a stride
/// fits into 64 bits. Tensors pass here that have no elements, a layout, no gaps (their size is judged as
/// such) or too many dimensions.
Status check_strides(const TensorView& tensor, std::string_view name);

}  // namespace megamoe::base
