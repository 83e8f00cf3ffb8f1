// The routing operators in the module.
#pragma once

#include <nanobind/nanobind.h>

namespace megamoe::python {

/// Defines one function per routing operator. Each takes `make(name, dtype, shape) -> Output | None`, which
/// it calls for every output in order, and the arguments by name, arrays as Input or None. It returns when
/// all outputs are written; a dtype of "undefined" stands for an output that these arguments do not have.
void bind_routing(nanobind::module_& module);

}  // namespace megamoe::python
