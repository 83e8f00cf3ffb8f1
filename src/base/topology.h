// What of this machine the process may use: cores, hardware threads, memory nodes, cache sizes.
#pragma once

#include <cstdint>

namespace megamoe::base {

struct Topology {
  int packages = 1;
  int numa_nodes = 1;
  int cores = 1;             ///< physical cores the process may run on
  int hardware_threads = 1;  ///< hardware threads the process may run on
  int quota_cores = 0;       ///< whole cores of a cgroup CPU quota, 0 = no quota
  int64_t l1d_bytes = 0;     ///< per core
  int64_t l2_bytes = 0;      ///< per core
  int64_t l3_bytes = 0;      ///< one shared cache

  /// Threads worth starting: physical cores, not more than the quota, at least 1.
  int usable_threads() const {
    const int limit = quota_cores > 0 && quota_cores < cores ? quota_cores : cores;
    return limit < 1 ? 1 : limit;
  }
};

/// Read once per process.
const Topology& topology();

}  // namespace megamoe::base
