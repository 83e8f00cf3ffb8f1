// The first page of every rank's segment: bell, state and failure record of its owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/quoted.h"

namespace megamoe::comm {

enum class RankState : uint32_t { kRunning = 0, kClosed = 1, kFailed = 2 };

/// Written before the state becomes kFailed, never changed after it.
struct FailureRecord {
  int32_t code;
  int32_t culprit;
  uint32_t stage;
  uint32_t text_bytes;
  char text[512];
};

/// All-zero bytes are a valid header of a running rank. Adders read `sleepers` of a peer on each add: it
/// shares its line with nothing that changes while nobody sleeps.
struct SegmentHeader {
  alignas(64) std::atomic<uint32_t> bell;      ///< futex word; rises with each ring
  alignas(64) std::atomic<uint32_t> sleepers;  ///< threads of the owner that sleep or are about to
  alignas(64) std::atomic<RankState> state;
  std::atomic<uint64_t> last_call;  ///< last call that the owner has left
  alignas(64) FailureRecord failure;
  std::byte unused[4096 - 192 - 576];
};
static_assert(sizeof(SegmentHeader) == 4096);

/// Marks the owner as failed. By the owner, once.
inline void write_failure(SegmentHeader& own, int32_t code, int32_t culprit, uint32_t stage,
                          std::string_view text) {
  own.failure.code = code;
  own.failure.culprit = culprit;
  own.failure.stage = stage;
  own.failure.text_bytes = static_cast<uint32_t>(base::fitting_bytes(text, sizeof(own.failure.text)));
  std::memcpy(own.failure.text, text.data(), own.failure.text_bytes);
  own.state.exchange(RankState::kFailed, std::memory_order_seq_cst);
}
static_assert(std::atomic<RankState>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace megamoe::comm
