// Fork-join over persistent threads: workers spin shortly for the next region, then sleep on a futex.
#include "base/team.h"

#include <new>
#include <string>
#include <system_error>

#include "base/fp_env.h"
#include "base/futex.h"

namespace megamoe::base {
namespace {

// Long enough to bridge the gap between the layers of a model, short enough not to disturb other ranks.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::milliseconds kSleep{200};

}  // namespace

Status check_threads(int threads) {
  if (threads >= 0 && threads <= kMaxThreads) return Status::ok();
  return Status(Code::kInvalidArgument, "threads = " + std::to_string(threads) +
                                            ": expected 0 (automatic) or a number up to " +
                                            std::to_string(kMaxThreads));
}

struct Team::Shared {
  alignas(64) std::atomic<uint32_t> region{0};  // number of the region to run; workers wait for a change
  std::atomic<uint32_t> sleepers{0};
  std::atomic<bool> stop{false};
  Function function = nullptr;
  void* context = nullptr;
  alignas(64) std::atomic<uint32_t> running{0};  // workers still inside the region; the caller waits for 0

  // Returns once `word` differs from `old`.
  static void await_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<uint32_t>& sleepers) {
    const auto limit = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 64; ++i) {
        if (word.load(std::memory_order_acquire) != old) return;
        cpu_relax();
      }
    } while (std::chrono::steady_clock::now() < limit);
    sleepers.fetch_add(1);
    while (word.load() == old) futex_wait(word, old, kSleep, FutexScope::kProcess);
    sleepers.fetch_sub(1);
  }

  void work(int thread) {
    uint32_t seen = 0;
    for (;;) {
      await_change(region, seen, sleepers);
      seen = region.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      {
        const DefaultFpEnv fp_env;
        function(context, thread);
      }
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(running, FutexScope::kProcess);
    }
  }
};

Team::Team(int threads) : size_(threads < 1 ? 1 : threads), fork_generation_(fork_generation()) {}

Team::~Team() {
  stop();
}

Status Team::start() {
  shared_ = std::make_unique<Shared>();
  try {
    threads_.reserve(static_cast<size_t>(size_ - 1));
    for (int i = 1; i < size_; ++i) threads_.emplace_back([shared = shared_.get(), i] { shared->work(i); });
  } catch (const std::system_error& error) {
    stop();
    return Status(Code::kSystem, "cannot start " + std::to_string(size_ - 1) + " threads: " + error.what());
  } catch (const std::bad_alloc&) {
    stop();
    return Status(Code::kOutOfMemory, "no memory to start " + std::to_string(size_ - 1) + " threads");
  }
  return Status::ok();
}

void Team::stop() {
  if (fork_generation_ != fork_generation()) {
    // The threads exist only in the parent: their handles are dropped without a join.
    for (std::thread& thread : threads_) new (&thread) std::thread();
    threads_.clear();
    static_cast<void>(shared_.release());
    return;
  }
  if (shared_ == nullptr) return;
  shared_->stop.store(true, std::memory_order_release);
  shared_->region.fetch_add(1);
  futex_wake_all(shared_->region, FutexScope::kProcess);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  shared_.reset();
}

Status Team::run_impl(Function function, void* context) {
  if (fork_generation_ != fork_generation()) {
    stop();
    fork_generation_ = fork_generation();
  }
  if (size_ > 1) {
    if (shared_ == nullptr) MEGAMOE_RETURN_IF_ERROR(start());
    shared_->function = function;
    shared_->context = context;
    shared_->running.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
    shared_->region.fetch_add(1);
    if (shared_->sleepers.load() != 0) futex_wake_all(shared_->region, FutexScope::kProcess);
  }
  {
    const DefaultFpEnv fp_env;
    function(context, 0);
  }
  if (size_ > 1) {
    for (uint32_t left; (left = shared_->running.load(std::memory_order_acquire)) != 0;) {
      const auto limit = std::chrono::steady_clock::now() + kSpin;
      while (shared_->running.load(std::memory_order_acquire) != 0 &&
             std::chrono::steady_clock::now() < limit) {
        cpu_relax();
      }
      left = shared_->running.load(std::memory_order_acquire);
      if (left != 0) futex_wait(shared_->running, left, kSleep, FutexScope::kProcess);
    }
  }
  return Status::ok();
}

}  // namespace megamoe::base
