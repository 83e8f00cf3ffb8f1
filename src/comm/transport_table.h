// The transports by name: one row each. Tests and tools iterate over it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megamoe/group.h"
#include "megamoe/status.h"

namespace megamoe::comm {

struct TransportRow {
  const char* name;
  bool one_process;  ///< all ranks are threads of this process
  int max_ranks;
  /// The handles that this process holds: all ranks when one_process, else the one of `rank`.
  Result<std::vector<Group>> (*join)(const std::string& key, int rank, int size);
};

std::span<const TransportRow> transport_table();

}  // namespace megamoe::comm
