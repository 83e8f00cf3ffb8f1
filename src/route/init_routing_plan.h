// The checked arguments of moe_init_routing_v3, and what follows from them.
#pragma once

#include <cstdint>

#include "megamoe/routing.h"
#include "route/quant_modes.h"

namespace megamoe::route {

struct InitRoutingPlan {
  int64_t tokens = 0, topk = 0, hidden = 0;
  int64_t slots = 0;           ///< tokens * topk
  int64_t start = 0, end = 0;  ///< active experts
  int64_t capacity = 0;        ///< rows per expert; 0 = dropless
  int64_t rows = 0;            ///< rows of expanded_x
  RowMode mode;
  MoeInitRoutingOutputs outputs;  ///< without memory

  /// Checks everything but memory.
  static Result<InitRoutingPlan> create(const MoeInitRoutingArgs& args);
};

}  // namespace megamoe::route
