// Whether strides lead to places that memory can have.
#pragma once

#include <string>

#include "megamoe/tensor.h"

namespace megamoe::base {

/// "(8192, 64, 1)"
std::string strides_text(const TensorView& tensor);

/// Elements of a plain tensor lie within 2^56 bytes, so that every later product of an index and a stride
/// fits into 64 bits. Tensors without elements, of a layout or with a number of dimensions that is refused
/// elsewhere pass.
Status check_strides(const TensorView& tensor, const std::string& name);

}  // namespace megamoe::base
