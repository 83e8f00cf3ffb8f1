// A point in time that waits must not pass, or where the program interrupts them, with texts for errors.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/interrupt.h"
#include "megamoe/status.h"

namespace megamoe::comm {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Limits are cut to a year, far below what overflows the clock.
  explicit Deadline(std::chrono::milliseconds limit)
      : limit_(std::clamp<std::chrono::milliseconds>(limit, std::chrono::milliseconds(0),
                                                     std::chrono::hours(24 * 365))),
        end_(Clock::now() + limit_) {}

  /// Whether waits have to end.
  bool passed() const { return Clock::now() >= end_ || base::interrupted(); }
  /// Until when a wait may sleep before it asks again.
  Clock::time_point next_look() const {
    return base::can_be_interrupted() ? std::min(end_, Clock::now() + base::InterruptScope::kPeriod) : end_;
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
    if (base::can_be_interrupted())
      most = std::min(most, static_cast<int>(base::InterruptScope::kPeriod.count()));
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, most));
  }

 private:
  std::chrono::milliseconds limit_;
  Clock::time_point end_;
};

}  // namespace megamoe::comm
