// Ranks that are processes of one host.
#pragma once

#include <memory>
#include <string>

#include "comm/group_state.h"

namespace megamoe::comm {

std::shared_ptr<GroupState> make_shm_group(const std::string& key, int size);

}  // namespace megamoe::comm
