// Which plan a call of the same layer has used before.
#pragma once

#include <nanobind/nanobind.h>

namespace megamoe::python {

/// Defines KnownPlans in the module.
void bind_known_plans(nanobind::module_& module);

}  // namespace megamoe::python
