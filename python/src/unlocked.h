// Work of the library without the interpreter lock.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "base/interrupt.h"

namespace megamoe::python {

/// Runs the handlers of signals that came during a wait. Only the main thread has any.
class Signals {
 public:
  static bool ask(void* self) {
    if (gettid() != getpid()) return false;  // before the lock, which others may hold for long
    const nanobind::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return false;
    static_cast<Signals*>(self)->error_.emplace();
    return true;
  }
  /// Raises what a handler raised, for example KeyboardInterrupt.
  void raise_if_any() {
    if (error_) throw nanobind::python_error(std::move(*error_));
  }

 private:
  std::optional<nanobind::python_error> error_;
};

/// Runs `work`, which touches no Python object, without the interpreter lock. What the handler of a signal
/// raises while it waits for other ranks comes before its result.
template <class Work>
auto unlocked(Work&& work) {
  Signals signals;
  auto result = [&] {
    const nanobind::gil_scoped_release release;
    const base::InterruptScope interrupts(&Signals::ask, &signals);
    return work();
  }();
  signals.raise_if_any();
  return result;
}

}  // namespace megamoe::python
