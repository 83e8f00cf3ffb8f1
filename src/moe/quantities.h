// What the settings, the layer and the tensors of a call are in the terms of the limits.
#pragma once

#include "megamoe/mega_moe.h"
#include "moe/limits.h"
#include "moe/validate.h"

namespace megamoe::moe {

/// Settings for a group of `ranks`. An intermediate_hidden of 0 stays unknown.
Quantities quantities_of(const BufferConfig& config, int64_t ranks);

/// Adds the layer. Packed weights count as what they were packed from.
void add_layer(const Layer& layer, const ActivationPlan& activation, DType token_codes, Quantities& q);

/// Tensors of a call.
Quantities quantities_of(const CallArgs& args);

}  // namespace megamoe::moe
