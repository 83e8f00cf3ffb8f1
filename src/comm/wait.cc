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
/// A round that took longer counts no more than this against the deadline: the whole job was stopped, and the
/// peers get the chance to deliver after it goes on.
constexpr std::chrono::milliseconds kMostPerRound{200};

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

  // A rank without peers waits for its own threads only, and those always end.
  const std::chrono::nanoseconds limit =
      impl.size == 1 ? std::chrono::nanoseconds::max() : Deadline(impl.options.deadline).limit();
  const Clock::time_point start = Clock::now();
  while (Clock::now() - start < impl.options.spin) {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      base::cpu_relax();
      if (ready(ready_context)) return Status::ok();
    }
    MEGAMOE_RETURN_IF_ERROR(impl.ended());
  }

  SegmentHeader& own = impl.header(impl.rank);
  Clock::time_point last = start;
  std::chrono::nanoseconds waited{0};
  std::chrono::nanoseconds next_question = kLivenessPeriod;
  for (;;) {
    const uint32_t bell = own.bell.load(std::memory_order_seq_cst);
    const Sleeper sleeper(own);
    // A peer that adds after this test sees the sleeper and rings, which ends the nap; one that added before
    // it makes the test true.
    if (ready(ready_context)) return Status::ok();
    MEGAMOE_RETURN_IF_ERROR(impl.ended());
    const Clock::time_point now = Clock::now();
    waited += std::min<std::chrono::nanoseconds>(now - last, kMostPerRound);
    last = now;
    const bool ask = waited >= next_question;
    if (ask) next_question = waited + kLivenessPeriod;
    MEGAMOE_RETURN_IF_ERROR(impl.check_peers(stage, ask));
    if (waited >= limit) {
      return fail(Code::kTimedOut, impl.rank, stage,
                  "rank " + std::to_string(impl.rank) + " waited longer than the limit of " +
                      std::to_string(limit.count() / 1000000) + " ms in the " + stage_name(stage) +
                      " of call " + std::to_string(current_call()) +
                      (late != nullptr ? " for " + late(late_context) : ""));
    }
    base::futex_wait(own.bell, bell, std::min<std::chrono::nanoseconds>(kNap, limit - waited),
                     base::FutexScope::kShared);
  }
}

}  // namespace megamoe::comm
