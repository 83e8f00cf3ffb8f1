// Prefetch of coming weights, spread evenly over the k loop of a tile so that no tile pays a whole panel at
// once.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

/// Dword rows of the panel (128 bytes each) between two calls of SpreadPrefetch::step.
inline constexpr int kPrefetchStride = 4;

/// `Level` is a type of the namespace of the calling level and keeps the copies apart.
template <class Level>
class SpreadPrefetch {
 public:
  SpreadPrefetch(const Tile& tile, int64_t dword_rows) {
    const int64_t steps = dword_rows / kPrefetchStride;
    const std::byte* from = tile.prefetch;
    int64_t bytes = tile.prefetch_bytes;
    if (from == nullptr) {  // nothing announced: stay ahead in this panel and in what lies behind it
      from = static_cast<const std::byte*>(tile.panel) + kStreamDistance;
      bytes = dword_rows * kPanelColumns * 4;
    }
    if (steps == 0 || bytes <= 0) return;
    const int64_t lines = (bytes + 63) / 64;
    per_step_ = static_cast<int>((lines + steps - 1) / steps);
    // Equal steps of at most a line, in 1/65536 byte, that end where the bytes end.
    advance_ = (static_cast<uint64_t>(bytes) << 16) / static_cast<uint64_t>(steps * per_step_);
    from_ = reinterpret_cast<uintptr_t>(from);
  }

  void step() {
    for (int i = 0; i < per_step_; ++i) {
      __builtin_prefetch(reinterpret_cast<const void*>(from_ + (offset_ >> 16)), 0, 2);
      offset_ += advance_;
    }
  }

 private:
  static constexpr int64_t kStreamDistance = 4096;

  uintptr_t from_ = 0;
  uint64_t offset_ = 0;
  uint64_t advance_ = 0;
  int per_step_ = 0;
};

}  // namespace megamoe::kernel
