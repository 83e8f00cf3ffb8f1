// What the control groups of this process leave it: containers and services limit CPUs and memory by them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace megamoe::base {

/// Where Linux tells of control groups, of either version.
struct ControlGroupFiles {
  std::string self = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

/// Cores of the least CPU quota of this process's group and those above it, rounded up; 0 = none.
int quota_cores(const ControlGroupFiles& files = {});
/// Bytes of the least memory limit of the same; the largest number there is = none.
uint64_t memory_limit(const ControlGroupFiles& files = {});

}  // namespace megamoe::base
