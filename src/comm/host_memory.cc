// Free memory by /proc/meminfo and the control group's limit.
#include "comm/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "base/control_group.h"

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

}  // namespace

Status check_host_memory(size_t bytes, int ranks) {
  const uint64_t available = std::min(meminfo_available(), base::memory_limit());
  uint64_t needed = 0;
  const bool overflow = __builtin_mul_overflow(uint64_t{bytes}, static_cast<uint64_t>(ranks), &needed);
  if (!overflow && needed <= available) return Status::ok();
  return Status(Code::kOutOfMemory, "shared memory of " + std::to_string(bytes) + " bytes on each of " +
                                        std::to_string(ranks) + " ranks: needed " +
                                        (overflow ? std::string("more than 2^64") : std::to_string(needed)) +
                                        " bytes, available " + std::to_string(available));
}

}  // namespace megamoe::comm
