// What the ranks of a call must have in common, judged on what all of them hold after the exchange.
#pragma once

#include "comm/exchange.h"
#include "moe/limits.h"
#include "moe/validate.h"

namespace megamoe::moe {

/// The activation and its parameters as words.
comm::LayerMark mark_of(const ActivationPlan& activation);

/// The same with what a call states, see CallArgs.
comm::LayerMark with_call(comm::LayerMark mark, const CallArgs& args);

/// The same verdict on every rank: activations, a global_bs or a ccl_buffer_size that differ, and numbers of
/// tokens that differ where the profile forbids it.
Status agree_on_call(const comm::CallMatrix& matrix, Profile profile);

}  // namespace megamoe::moe
