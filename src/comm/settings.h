// What the ranks of a group must agree on when they create a buffer, and the one check of it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::comm {

/// Settings every rank must agree on, as (field, value) text in a fixed order; the library version is added
/// by open().
using Settings = std::vector<std::pair<std::string, std::string>>;

/// What one rank says of itself at creation.
struct Hello {
  int rank = 0;
  int size = 1;
  Settings settings;  ///< with library version and segment bytes
  Status refusal;     ///< why this rank cannot take part; ok where it can
};

/// Adds library version and segment bytes.
Settings full_settings(const Settings& settings, size_t segment_bytes);

/// Ok when sizes are equal, ranks are in range and unique, no rank refuses and all settings are the same;
/// else an error that names the field, the ranks and the values. Does not ask whether all ranks are there.
Status agree(std::span<const Hello* const> hellos);

/// "rank 2" or "ranks 0, 3".
std::string rank_list(std::span<const int> ranks);

}  // namespace megamoe::comm
