// What the ranks of a call must have in common, judged on what all of them hold after the exchange.
#pragma once

#include "comm/exchange.h"
#include "moe/limits.h"
#include "moe/validate.h"

namespace megamoe::moe {

/// The activation and its parameters as words.
comm::LayerMark mark_of(const ActivationPlan& activation);

/// The same with the global_bs of a call.
comm::LayerMark with_global_bs(comm::LayerMark mark, int64_t global_bs);

/// The same verdict on every rank: activations or a global_bs that differ, and numbers of tokens that differ
/// where the profile forbids it.
Status agree_on_call(const comm::CallMatrix& matrix, Profile profile);

}  // namespace megamoe::moe
