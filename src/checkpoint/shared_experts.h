// One wide expert that every token passes, as several of the width of a routed one.
#pragma once

#include <string>

#include "checkpoint/find_tensor.h"
#include "megamoe/mega_moe.h"

namespace megamoe::checkpoint {

/// Makes `count` experts of width `width` of one of count * width, whose results add up to its own. `name` is
/// that of its tensors, for errors: scales of groups and blocks have to end where an expert does.
Status split_shared(const std::string& name, int64_t count, int64_t width, LinearWeights& weight1,
                    LinearWeights& weight2, LayerMemory& memory);

}  // namespace megamoe::checkpoint
