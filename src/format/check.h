// Texts of wrong types, shapes and layouts of tensor arguments.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::format {

/// "bfloat16, float16 or float32"
std::string type_list(const std::vector<DType>& types);
/// "x has type int8: expected bfloat16 or float32"
Status check_type(const TensorView& tensor, const char* name, const std::vector<DType>& types);
/// Plain layout, memory where there are elements, and for 4-bit types a last dimension without gaps.
Status check_plain(const TensorView& tensor, const char* name);
/// Extents not below zero, their product and the bytes they span within 63 bits.
Status check_extents(const TensorView& tensor, const char* name);
/// "y has shape (3, 5): expected (3, 4)"
Status wrong_shape(const TensorView& tensor, const char* name, const std::string& expected);
Status check_same_shape(const TensorView& tensor, const char* name, const TensorView& like);

}  // namespace megamoe::format
