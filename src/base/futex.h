// Sleeping on a 32-bit word in memory, within a process or across processes that map the same page.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace megamoe::base {

enum class FutexScope { kProcess, kShared };

/// Sleeps while `word` holds `expected`, at most `timeout`; may return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout,
                FutexScope scope);
/// Wakes every sleeper on `word`.
void futex_wake_all(const std::atomic<uint32_t>& word, FutexScope scope);

/// One step of a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

/// Number of forks this process image has behind it since the library was loaded: objects that own threads
/// compare it.
uint32_t fork_generation();

}  // namespace megamoe::base
