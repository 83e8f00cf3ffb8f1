// The weight formats that can be packed: one row each.
#pragma once

#include <span>
#include <string>

#include "kernel/contract.h"
#include "megamoe/mega_moe.h"

namespace megamoe::pack {

enum class ScaleKind { kNone, kChannel, kMx };

struct WeightType {
  DType dtype;
  kernel::Family family;
  kernel::WeightCode code;
  ScaleKind scales;
};

std::span<const WeightType> weight_types();
/// The row of a type, or null.
const WeightType* find_weight_type(DType dtype);
/// "bfloat16, int8, ..." for messages.
std::string weight_type_names();

/// The same weights with int4 given as int32 words turned into int4 elements.
LinearWeights with_nibbles(LinearWeights weights);

}  // namespace megamoe::pack
