// The threads that routing operators share per calling thread.
#include "route/workers.h"

#include <memory>

#include "base/topology.h"
#include "kernel/registry.h"
#include "route/check.h"

namespace megamoe::route {

Result<Workers> Workers::create(const RoutingOptions& options) {
  if (options.threads < 0) return wrong_value("threads", options.threads, "0 (all cores) or more");
  Result<Isa> isa = options.isa ? Result<Isa>(*options.isa) : default_isa();
  if (!isa) return isa.status();
  if (static_cast<int>(*isa) < 0 || static_cast<int>(*isa) >= kIsaCount) {
    return wrong_value("isa", static_cast<int>(*isa), "a level of isa_levels()");
  }
  if (!isa_levels()[static_cast<size_t>(*isa)].runnable) return isa_from_name(isa_name(*isa)).status();
  const int threads = options.threads > 0 ? options.threads : base::topology().usable_threads();
  return Workers(threads, &kernel::row_ops_for(*isa));
}

base::Team& Workers::team() const {
  thread_local std::unique_ptr<base::Team> team;
  if (team == nullptr || team->size() != threads_) team = std::make_unique<base::Team>(threads_);
  return *team;
}

}  // namespace megamoe::route
