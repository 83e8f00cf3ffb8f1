// The one wait loop: spin, then sleep on the own bell with short time-outs, never past a failure or the
// deadline.
#include <chrono>

#include "base/interrupt.h"
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

Status Session::wait_impl(Callback<bool> ready, Callback<std::string> late, Callback<bool> idle,
                          Stage stage) {
  Impl& impl = *impl_;
  MEGAMOE_RETURN_IF_ERROR(impl.ended());
  if (ready()) return Status::ok();

  const std::chrono::nanoseconds limit = Deadline(impl.options.deadline).limit();
  const Clock::time_point start = Clock::now();
  while (Clock::now() - start < impl.options.spin) {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      base::cpu_relax();
      if (ready()) return Status::ok();
    }
    MEGAMOE_RETURN_IF_ERROR(impl.ended());
  }

  SegmentHeader& own = impl.header(impl.rank);
  Clock::time_point last = start;
  std::chrono::nanoseconds waited{0}, elapsed{0};
  std::chrono::nanoseconds next_question = kLivenessPeriod;
  for (;;) {
    const uint32_t bell = own.bell.load(std::memory_order_seq_cst);
    const Sleeper sleeper(own);
    // A peer that adds after this test sees the sleeper and rings, which ends the nap; one that added before
    // it makes the test true.
    if (ready()) return Status::ok();
    MEGAMOE_RETURN_IF_ERROR(impl.ended());
    const Clock::time_point now = Clock::now();
    const auto round = std::min<std::chrono::nanoseconds>(now - last, kMostPerRound);
    last = now;
    elapsed += round;
    const bool ask = elapsed >= next_question;
    if (ask) next_question = elapsed + kLivenessPeriod;
    MEGAMOE_RETURN_IF_ERROR(impl.check_peers(stage, ask));
    // Own threads always end: what is awaited of them counts nothing.
    if (impl.size == 1 || (idle && !idle())) {
      base::futex_wait(own.bell, bell, kNap, base::FutexScope::kShared);
      continue;
    }
    if (base::interrupted()) {
      return fail(Code::kPeerFailed, impl.rank, stage,
                  "rank " + std::to_string(impl.rank) + " was interrupted in the " + stage_name(stage) +
                      " of call " + std::to_string(current_call()));
    }
    waited += round;
    if (waited >= limit) {
      return fail(Code::kTimedOut, impl.rank, stage,
                  "rank " + std::to_string(impl.rank) + " waited longer than the limit of " +
                      std::to_string(limit.count() / 1000000) + " ms in the " + stage_name(stage) +
                      " of call " + std::to_string(current_call()) + (late ? " for " + late() : ""));
    }
    base::futex_wait(own.bell, bell, std::min<std::chrono::nanoseconds>(kNap, limit - waited),
                     base::FutexScope::kShared);
  }
}

}  // namespace megamoe::comm
