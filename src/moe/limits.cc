// The limit table and its one check.
#include "moe/limits.h"

#include <string>

namespace megamoe::moe {
namespace {

constexpr Limit kLimits[] = {
#define MEGAMOE_LIMIT(profile, parameter, smallest, largest, multiple) \
  {profile, parameter, smallest, largest, multiple},
#include "moe/limits.inc"
#undef MEGAMOE_LIMIT
};

}  // namespace

std::span<const Limit> limits() {
  return kLimits;
}

Status check_profile(std::string_view profile) {
  std::string names;
  std::string_view last;
  for (const Limit& limit : kLimits) {
    if (limit.profile == profile) return Status::ok();
    if (limit.profile != last) names += (names.empty() ? "" : ", ") + std::string(limit.profile);
    last = limit.profile;
  }
  return Status(Code::kInvalidArgument,
                "profile = \"" + std::string(profile) + "\": expected one of " + names);
}

Status check_limit(std::string_view profile, std::string_view parameter, int64_t value) {
  for (const Limit& limit : kLimits) {
    if (limit.profile != profile || limit.parameter != parameter) continue;
    if (value >= limit.smallest && value <= limit.largest && value % limit.multiple_of == 0) continue;
    const std::string multiple =
        limit.multiple_of > 1 ? "a multiple of " + std::to_string(limit.multiple_of) + " " : "a value ";
    return Status(Code::kInvalidArgument,
                  std::string(parameter) + " = " + std::to_string(value) + ": expected " + multiple + "in [" +
                      std::to_string(limit.smallest) + ", " + std::to_string(limit.largest) + "] (profile " +
                      std::string(profile) + ")");
  }
  return Status::ok();
}

}  // namespace megamoe::moe
