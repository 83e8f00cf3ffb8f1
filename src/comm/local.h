// Ranks that are threads of one process, and the group of one rank.
#pragma once

#include <memory>

#include "comm/group_state.h"

namespace megamoe::comm {

/// `name` is the transport's name in the table: "local", or "self" for one rank.
std::shared_ptr<GroupState> make_local_group(const char* name, int size);

}  // namespace megamoe::comm
