// Base of the transports that see every segment as plain memory.
#pragma once

#include <atomic>
#include <cstring>
#include <vector>

#include "base/futex.h"
#include "comm/transport.h"

namespace megamoe::comm {

/// `offset` of a segment as a shared 32-bit word.
inline std::atomic<uint32_t>& word_at(std::byte* segment, size_t offset) {
  return *reinterpret_cast<std::atomic<uint32_t>*>(segment + offset);
}

class MappedTransport : public Transport {
 public:
  std::byte* segment(int rank) const override { return segments_[rank]; }
  void put(int rank, size_t offset, const void* source, size_t bytes) override {
    std::memcpy(segments_[rank] + offset, source, bytes);
  }
  void add(int rank, size_t offset, uint32_t n) override {
    word_at(segments_[rank], offset).fetch_add(n, std::memory_order_seq_cst);
  }
  void wake(int rank, size_t offset) override {
    base::futex_wake_all(word_at(segments_[rank], offset), base::FutexScope::kShared);
  }

 protected:
  std::vector<std::byte*> segments_;
};

}  // namespace megamoe::comm
