// Free memory by /proc/meminfo and the control group's limit.
#include "comm/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace megamoe::comm {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

uint64_t meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib * 1024;
  }
  return kUnknown;
}

/// Smallest memory.max from this process's control group up to the root.
uint64_t control_group_limit() {
  std::ifstream self("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  uint64_t limit = kUnknown;
  for (;;) {
    std::ifstream file("/sys/fs/cgroup" + path + "/memory.max");
    uint64_t bytes = 0;
    if (file >> bytes) limit = std::min(limit, bytes);
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return limit;
    path.resize(slash);
  }
}

}  // namespace

Status check_host_memory(size_t bytes, int ranks) {
  const uint64_t available = std::min(meminfo_available(), control_group_limit());
  uint64_t needed = 0;
  const bool overflow = __builtin_mul_overflow(uint64_t{bytes}, static_cast<uint64_t>(ranks), &needed);
  if (!overflow && needed <= available) return Status::ok();
  return Status(Code::kOutOfMemory, "shared memory of " + std::to_string(bytes) + " bytes on each of " +
                                        std::to_string(ranks) + " ranks: needed " +
                                        (overflow ? std::string("more than 2^64") : std::to_string(needed)) +
                                        " bytes, available " + std::to_string(available));
}

}  // namespace megamoe::comm
