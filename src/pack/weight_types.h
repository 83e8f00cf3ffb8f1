// The weight formats that can be packed: one row each.
#pragma once

#include <span>
#include <string>

#include "kernel/contract.h"
#include "megamoe/mega_moe.h"

namespace megamoe::pack {

/// kGroups and kBlocks: LinearWeights::scale_group is set.
enum class ScaleKind { kNone, kChannel, kMx, kGroups, kBlocks };

constexpr bool is_grouped(ScaleKind scales) {
  return scales == ScaleKind::kGroups || scales == ScaleKind::kBlocks;
}

struct WeightType {
  DType dtype;
  kernel::Family family;
  kernel::WeightCode code;
  ScaleKind scales;
};

std::span<const WeightType> weight_types();
/// The row of a type, with the scales it has by itself or with scale_group; null where there is none.
const WeightType* find_weight_type(DType dtype, bool grouped = false);
/// "bfloat16, int8, ..." for messages.
std::string weight_type_names();
/// "int8", "int4 with scale_group" for messages.
std::string weight_form_name(DType dtype, ScaleKind scales);

/// The same weights with int4 given as int32 words turned into int4 elements.
LinearWeights with_nibbles(LinearWeights weights);

}  // namespace megamoe::pack
