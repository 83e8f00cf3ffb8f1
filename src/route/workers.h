// Threads and kernels of one call of a routing operator.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/team.h"
#include "kernel/contract.h"
#include "megamoe/routing.h"

namespace megamoe::route {

/// Splits work into neighbouring parts, one per thread. The threads belong to the calling thread, are started
/// by the first call that needs them and stay until that thread ends.
class Workers {
 public:
  /// An error for a number of threads out of range or a level that this machine cannot run.
  static Result<Workers> create(const RoutingOptions& options);

  const kernel::RowOps& ops() const { return *ops_; }

  /// Parts for `items` of which at least `grain` make a part worth a thread.
  int parts(int64_t items, int64_t grain) const {
    return static_cast<int>(std::clamp<int64_t>(items / std::max<int64_t>(1, grain), 1, threads_));
  }
  /// First item of a part; that of part `parts` is `items`.
  static int64_t begin(int64_t items, int parts, int part) {
    return items / parts * part + std::min<int64_t>(part, items % parts);
  }

  /// Runs body(part) for every part and waits. Where the threads cannot be started, the caller does all of
  /// it: an operator that has begun to write must not end in an error.
  template <class Body>
  void run(int parts, Body&& body) {
    if (parts > 1 && !alone_) {
      const Status status = team().run([&](int thread) {
        if (thread < parts) body(thread);
      });
      if (status) return;
      alone_ = true;
    }
    for (int part = 0; part < parts; ++part) body(part);
  }

  /// Runs body(begin, end) over neighbouring ranges of [0, items).
  template <class Body>
  void split(int64_t items, int64_t grain, Body&& body) {
    const int count = parts(items, grain);
    run(count, [&](int part) { body(begin(items, count, part), begin(items, count, part + 1)); });
  }

 private:
  Workers(int threads, const kernel::RowOps* ops) : threads_(threads), ops_(ops) {}
  base::Team& team() const;

  int threads_;
  bool alone_ = false;  ///< the threads could not be started
  const kernel::RowOps* ops_;
};

}  // namespace megamoe::route
