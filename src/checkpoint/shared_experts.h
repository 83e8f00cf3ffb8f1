// Experts that every token passes: a wide one as several of the width of a routed one, and behind routed
// ones.
#pragma once

#include <string>

#include "checkpoint/find_tensor.h"
#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// Makes `count` experts of width `width` of one of count * width, whose results add up to its own. `name` is
/// that of its tensors, for errors: scales of groups and blocks have to end where an expert does.
Status split_shared(const std::string& name, int64_t count, int64_t width, LinearWeights& weight1,
                    LinearWeights& weight2, LayerMemory& memory);

/// Puts the experts of `more` behind those of `all`, as one tensor per expert. `parts`: 2 where gate and up
/// are both in one linear layer. `name` is that of the tensors of `more`: types and scales have to be those
/// of `all`.
Status append_experts(const std::string& name, const LinearWeights& more, int64_t parts, LinearWeights& all,
                      LayerMemory& memory);

}  // namespace megamoe::checkpoint
