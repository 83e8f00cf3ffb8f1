// A point in time that waits must not pass, with the limit it came from for error texts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace megamoe::comm {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Limits are cut to a year, far below what overflows the clock.
  explicit Deadline(std::chrono::milliseconds limit)
      : limit_(std::clamp<std::chrono::milliseconds>(limit, std::chrono::milliseconds(0),
                                                     std::chrono::hours(24 * 365))),
        end_(Clock::now() + limit_) {}

  bool passed() const { return Clock::now() >= end_; }
  Clock::time_point end() const { return end_; }
  std::chrono::milliseconds limit() const { return limit_; }
  int64_t limit_ms() const { return limit_.count(); }
  /// Milliseconds left for poll(): rounded up, between 0 and `most`.
  int left_ms(int most) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, most));
  }

 private:
  std::chrono::milliseconds limit_;
  Clock::time_point end_;
};

}  // namespace megamoe::comm
