// The one wait loop: spin, then sleep on the own bell with short time-outs, never past a failure or the
// deadline.
#include <chrono>

#include "comm/deadline.h"
#include "comm/session_impl.h"

namespace megamoe::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSpinsPerLook = 32;  ///< tests between two looks at the clock
constexpr std::chrono::milliseconds kNap{10};
constexpr std::chrono::milliseconds kLivenessPeriod{60};

/// Counts this thread among the sleepers of its rank.
class Sleeper {
 public:
  explicit Sleeper(SegmentHeader& header) : header_(header) {
    header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() { header_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  SegmentHeader& header_;
};

}  // namespace

Status Session::wait_impl(bool (*ready)(void*), void* ready_context, std::string (*late)(void*),
                          void* late_context, Stage stage) {
  Impl& impl = *impl_;
  MEGAMOE_RETURN_IF_ERROR(impl.ended());
  if (ready(ready_context)) return Status::ok();

  const Deadline deadline(impl.options.deadline);
  const Clock::time_point start = Clock::now();
  while (Clock::now() - start < impl.options.spin) {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      base::cpu_relax();
      if (ready(ready_context)) return Status::ok();
    }
    MEGAMOE_RETURN_IF_ERROR(impl.ended());
  }

  SegmentHeader& own = impl.header(impl.rank);
  Clock::time_point asked = start;
  for (;;) {
    const uint32_t bell = own.bell.load(std::memory_order_seq_cst);
    const Sleeper sleeper(own);
    // A peer that adds after this test sees the sleeper and rings, which ends the nap; one that added before
    // it makes the test true.
    if (ready(ready_context)) return Status::ok();
    MEGAMOE_RETURN_IF_ERROR(impl.ended());
    const Clock::time_point now = Clock::now();
    const bool ask = now - asked >= kLivenessPeriod;
    if (ask) asked = now;
    MEGAMOE_RETURN_IF_ERROR(impl.check_peers(stage, ask));
    if (now >= deadline.end()) {
      return fail(Code::kTimedOut, impl.rank, stage,
                  "rank " + std::to_string(impl.rank) + " waited longer than the limit of " +
                      std::to_string(deadline.limit_ms()) + " ms in the " + stage_name(stage) + " of call " +
                      std::to_string(current_call()) + (late != nullptr ? " for " + late(late_context) : ""));
    }
    base::futex_wait(own.bell, bell, std::min<std::chrono::nanoseconds>(kNap, deadline.end() - now),
                     base::FutexScope::kShared);
  }
}

}  // namespace megamoe::comm
