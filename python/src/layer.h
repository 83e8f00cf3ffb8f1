// Weights, activation and the planned layer.
#pragma once

#include <nanobind/nanobind.h>

namespace megamoe::python {

/// Defines RawWeights, PackedWeights with its two packing functions, Activation and Plan in the module.
void bind_layer(nanobind::module_& module);

}  // namespace megamoe::python
