// Whether the program wants the waits of this thread to end, for example after Ctrl-C.
#pragma once

#include <chrono>

namespace megamoe::base {

/// While it lives, waits of the thread that made it ask `ask` now and then; once that was true it stays so.
/// Scopes of a thread end in the opposite order.
class InterruptScope {
 public:
  /// Time between two questions.
  static constexpr std::chrono::milliseconds kPeriod{50};

  InterruptScope(bool (*ask)(void*), void* context);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  friend bool interrupted();

  bool (*const ask_)(void*);
  void* const context_;
  InterruptScope* const outer_;
  bool interrupted_ = false;
  std::chrono::steady_clock::time_point next_;
};

/// Whether waits of this thread have somebody to ask: then none may sleep for much longer than kPeriod.
bool can_be_interrupted();
/// Asks the last scope of this thread, if it is time.
bool interrupted();

}  // namespace megamoe::base
