// Which sizes a profile allows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::moe {

/// Most threads of one rank.
inline constexpr int kMaxThreads = 4096;

struct Limit {
  std::string_view profile;
  std::string_view parameter;
  int64_t smallest;
  int64_t largest;
  int64_t multiple_of;
};

std::span<const Limit> limits();

/// An error that lists the profiles when there is none of this name.
Status check_profile(std::string_view profile);

/// "hidden = 7: expected a multiple of 64 in [1024, 8192] (profile ascend_950)".
Status check_limit(std::string_view profile, std::string_view parameter, int64_t value);

}  // namespace megamoe::moe
