// The threads that routing operators share per calling thread.
#include "route/workers.h"

#include <memory>

#include "base/topology.h"
#include "kernel/default_isa.h"
#include "kernel/registry.h"

namespace megamoe::route {

Result<Workers> Workers::create(const RoutingOptions& options) {
  MEGAMOE_RETURN_IF_ERROR(base::check_threads(options.threads));
  Result<Isa> isa = kernel::isa_of_call(options.isa);
  if (!isa) return isa.status();
  const int threads = options.threads > 0 ? options.threads : base::topology().usable_threads();
  return Workers(threads, &kernel::row_ops_for(*isa));
}

base::Team& Workers::team() const {
  thread_local std::unique_ptr<base::Team> team;
  if (team == nullptr || team->size() != threads_) team = std::make_unique<base::Team>(threads_);
  return *team;
}

}  // namespace megamoe::route
