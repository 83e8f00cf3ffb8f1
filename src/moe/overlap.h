// Whether elements of matrices share memory, by their strides.
#pragma once

#include "megamoe/tensor.h"

namespace megamoe::moe {

/// True if two elements of a matrix stand in the same place.
bool elements_overlap(const TensorView& matrix);

/// True if a row of `a` shares bytes with a row of `b`. Rows whose elements do not stand side by side are not
/// looked at.
bool rows_overlap(const TensorView& a, const TensorView& b);

}  // namespace megamoe::moe
