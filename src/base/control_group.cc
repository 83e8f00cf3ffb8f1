// Version 2 has one tree for all controllers ("0::/path"), version 1 one for each ("4:cpu,cpuacct:/path").
// Inside a container the path may be one of the host; its group is then the root that is seen.
#include "base/control_group.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace megamoe::base {
namespace {

/// Whether a list with commas between its names holds a name.
bool holds(const std::string& names, const std::string& name) {
  std::istringstream list(names);
  for (std::string one; std::getline(list, one, ',');) {
    if (one == name) return true;
  }
  return false;
}

/// Calls `read(folder)` for the folder of this process's group in the trees that may hold a controller, then
/// for those above it.
template <class Read>
void for_each_folder(const ControlGroupFiles& files, const std::string& controller, const Read& read) {
  std::ifstream self(files.self);
  for (std::string line; std::getline(self, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool all = names.empty();
    if (!all && !holds(names, controller)) continue;
    const std::string root = all ? files.root : files.root + "/" + controller;
    std::string path = line.substr(second + 1);
    while (!path.empty()) {
      read(root + path + "/");
      const size_t slash = path.rfind('/');
      path.resize(slash == std::string::npos ? 0 : slash);
    }
    read(root + "/");
  }
}

}  // namespace

int quota_cores(const ControlGroupFiles& files) {
  double least = 0;
  for_each_folder(files, "cpu", [&](const std::string& folder) {
    std::ifstream both(folder + "cpu.max"), quotas(folder + "cpu.cfs_quota_us"),
        periods(folder + "cpu.cfs_period_us");
    std::string quota;
    double period = 0;
    if (!(both >> quota >> period) && !(quotas >> quota && periods >> period)) return;
    const double cores = period > 0 ? std::strtod(quota.c_str(), nullptr) / period : 0;  // "max", -1: none
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
  });
  return static_cast<int>(std::min<double>(std::ceil(least), std::numeric_limits<int>::max()));
}

uint64_t memory_limit(const ControlGroupFiles& files) {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for_each_folder(files, "memory", [&](const std::string& folder) {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      std::ifstream file(folder + name);
      uint64_t bytes = 0;
      if (file >> bytes) least = std::min(least, bytes);
    }
  });
  return least;
}

}  // namespace megamoe::base
