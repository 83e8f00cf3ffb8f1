// A progress bar on a terminal, for work that takes longer than two seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace megamoe::cli {

class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Work of `total` steps that is now at `done`; draws at most ten times a second.
  void show(const std::string& label, int64_t done, int64_t total);
  /// Removes the bar, before other output.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_{};
  bool terminal_;
  bool drawn_ = false;
};

}  // namespace megamoe::cli
