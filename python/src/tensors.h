// Tensors that Python owns, seen as TensorView or TensorRef. The array object is kept alive with the view.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string_view>

#include "megamoe/tensor.h"

namespace megamoe::python {

using InputArray = nanobind::ndarray<nanobind::ro, nanobind::device::cpu>;
using OutputArray = nanobind::ndarray<nanobind::device::cpu>;

/// Memory that is only read.
struct Input {
  InputArray array;
  TensorView view;
};

/// Memory that is written.
struct Output {
  OutputArray array;
  TensorRef ref;
};

/// Defines Input and Output in the module. Both take an array (DLPack or buffer protocol) and the name of its
/// element type, because neither protocol knows all types: an array of another type of the same size carries
/// the bits, and bytes carry two elements each of a type of 4 bits.
void bind_tensors(nanobind::module_& module);

}  // namespace megamoe::python
