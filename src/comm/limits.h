// Bounds of what one group can be.
#pragma once

#include <cstddef>

namespace megamoe::comm {

inline constexpr int kMaxRanks = 1024;
inline constexpr size_t kMaxKeyBytes = 64;

}  // namespace megamoe::comm
