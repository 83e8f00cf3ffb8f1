// The stages of a call in the order data passes through them: where each lies in Stages, and its number
// format.
#pragma once

#include <cstdint>
#include <span>

#include "megamoe/stages.h"
#include "megamoe/tensor.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

struct StageInfo {
  const char* name;
  bool exact;   ///< only moved or quantised: equal wherever the stages before it are
  bool shared;  ///< of the shared experts
  /// The values of all rows, float32 or, for the order of rows, int64; one dimension.
  TensorView (*values)(const Stages&);
  /// The format the values are numbers of.
  DType (*type)(const moe::Scenario&);
};

/// Routed rows first, then those of the shared experts; the outputs of a call are not among them.
std::span<const StageInfo> stage_table();

/// Rows of a stage, from its set's row order.
int64_t stage_rows(const StageInfo& stage, const Stages& stages);

}  // namespace megamoe::cli
