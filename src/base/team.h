// The threads of one rank: a parallel region runs one function on all of them, the caller included.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "megamoe/status.h"

namespace megamoe::base {

/// Most threads of a team.
inline constexpr int kMaxThreads = 4096;
/// "threads = -1: expected ..."; 0 stands for a number that the library chooses.
Status check_threads(int threads);

class Team {
 public:
  /// `threads` >= 1 counts the caller. Threads start with the first region and sleep between regions.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  /// Runs body(thread) for thread = 0 .. size-1, thread 0 on the caller; returns when all have ended. Not
  /// reentrant. After a fork the child starts threads of its own.
  template <class Body>
  Status run(Body&& body) {
    return run_impl([](void* f, int thread) { (*static_cast<std::remove_reference_t<Body>*>(f))(thread); },
                    &body);
  }

 private:
  using Function = void (*)(void*, int);
  struct Shared;
  Status run_impl(Function function, void* context);
  Status start();
  void stop();

  int size_;
  uint32_t fork_generation_ = 0;
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace megamoe::base
