// The futex system call and the fork counter.
#include "base/futex.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <limits>

namespace megamoe::base {
namespace {

int operation(int op, FutexScope scope) {
  return scope == FutexScope::kProcess ? op | FUTEX_PRIVATE_FLAG : op;
}

std::atomic<uint32_t> g_forks{0};

struct ForkCounter {
  ForkCounter() {
    pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  }
};
const ForkCounter g_fork_counter;

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout,
                FutexScope scope) {
  timespec limit;
  limit.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), operation(FUTEX_WAIT, scope), expected, &limit,
          nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word, FutexScope scope) {
  syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), operation(FUTEX_WAKE, scope),
          std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

uint32_t fork_generation() {
  return g_forks.load(std::memory_order_relaxed);
}

}  // namespace megamoe::base
