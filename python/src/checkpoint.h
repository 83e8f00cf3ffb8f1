// Expert layers of checkpoints.
#pragma once

#include <nanobind/nanobind.h>

namespace megamoe::python {

/// Defines Checkpoint and CheckpointLayer in the module; PackedWeights must be there.
void bind_checkpoint(nanobind::module_& module);

}  // namespace megamoe::python
