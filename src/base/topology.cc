// The topology by hwloc, narrowed to the process's CPU set and cgroup quota.
#include "base/topology.h"

#include <hwloc.h>

#include "base/control_group.h"

namespace megamoe::base {
namespace {

int count_inside(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_const_cpuset_t allowed) {
  int count = 0;
  const int depth = hwloc_get_type_depth(topology, type);
  if (depth < 0 && depth != HWLOC_TYPE_DEPTH_NUMANODE) return 0;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_depth(topology, depth, object)) != nullptr;) {
    if (hwloc_bitmap_intersects(object->cpuset, allowed)) ++count;
  }
  return count;
}

int64_t cache_bytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache == nullptr ? 0 : static_cast<int64_t>(cache->attr->cache.size);
}

Topology read_topology() {
  Topology result;
  result.quota_cores = quota_cores();
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return result;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_cpuset_t allowed = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) != 0 || hwloc_bitmap_iszero(allowed)) {
      hwloc_bitmap_copy(allowed, hwloc_topology_get_allowed_cpuset(topology));
    }
    const auto at_least_one = [](int n) { return n < 1 ? 1 : n; };
    result.packages = at_least_one(count_inside(topology, HWLOC_OBJ_PACKAGE, allowed));
    result.numa_nodes = at_least_one(count_inside(topology, HWLOC_OBJ_NUMANODE, allowed));
    result.cores = at_least_one(count_inside(topology, HWLOC_OBJ_CORE, allowed));
    result.hardware_threads = at_least_one(count_inside(topology, HWLOC_OBJ_PU, allowed));
    result.l1d_bytes = cache_bytes(topology, HWLOC_OBJ_L1CACHE);
    result.l2_bytes = cache_bytes(topology, HWLOC_OBJ_L2CACHE);
    result.l3_bytes = cache_bytes(topology, HWLOC_OBJ_L3CACHE);
    hwloc_bitmap_free(allowed);
  }
  hwloc_topology_destroy(topology);
  return result;
}

}  // namespace

const Topology& topology() {
  static const Topology result = read_topology();
  return result;
}

}  // namespace megamoe::base
