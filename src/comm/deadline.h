// When waits must end: after a time, or where the program interrupts them, with texts for errors.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/interrupt.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// Of one thread, which looks at it at least every kLongestNap while it waits. A longer time between two
/// looks, in which the whole process was stopped, counts as little more.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLongestNap{1000};

  /// Limits are cut to a year, far below what overflows the clock.
  explicit Deadline(std::chrono::milliseconds limit)
      : limit_(std::clamp<std::chrono::milliseconds>(limit, std::chrono::milliseconds(0),
                                                     std::chrono::hours(24 * 365))),
        left_(limit_),
        last_look_(Clock::now()) {}

  /// Whether waits have to end.
  bool passed() const {
    const Clock::time_point now = Clock::now();
    left_ -= std::min<Clock::duration>(now - last_look_, kLongestNap + kLongestNap / 5);
    last_look_ = now;
    return left_ <= Clock::duration::zero() || base::interrupted();
  }
  /// Until when a wait may sleep before it looks again.
  Clock::time_point next_look() const {
    return Clock::now() + std::clamp<Clock::duration>(left_, Clock::duration::zero(), longest_nap());
  }
  std::chrono::milliseconds limit() const { return limit_; }

  /// Of a wait of `rank` that has to end: its code, and what follows "did not come".
  Code code() const { return base::interrupted() ? Code::kPeerFailed : Code::kTimedOut; }
  std::string text(int rank) const {
    if (base::interrupted()) return "before rank " + std::to_string(rank) + " was interrupted";
    return "within " + std::to_string(limit_.count()) + " ms";
  }

  /// Milliseconds left for poll(): rounded up, between 0 and `most`.
  int left_ms(int most) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(left_).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, std::min<int64_t>(most, longest_nap().count())));
  }

 private:
  static std::chrono::milliseconds longest_nap() {
    return base::can_be_interrupted() ? base::InterruptScope::kPeriod : kLongestNap;
  }

  std::chrono::milliseconds limit_;
  mutable Clock::duration left_;
  mutable Clock::time_point last_look_;
};

}  // namespace megamoe::comm
