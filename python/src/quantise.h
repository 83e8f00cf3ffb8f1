// Quantisation rules and casts in the module.
#pragma once

#include <nanobind/nanobind.h>

namespace megamoe::python {

/// Defines quant_rules, quantise, dequantise and cast, convert_layout in the module.
void bind_quantise(nanobind::module_& module);

}  // namespace megamoe::python
