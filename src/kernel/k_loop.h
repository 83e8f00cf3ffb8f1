// The k loop of a tile, with the prefetch of coming weights spread evenly over it so that no tile pays a
// whole panel at once. `Level` is a type of the namespace of the calling level and keeps the copies of the
// levels apart.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

/// Steps of the k loop between two calls of SpreadPrefetch::step; a step reads one dword row of the panel.
inline constexpr int kPrefetchStride = 4;

/// Where lines go when they have been read. kOnce, on AMD: from the second-level cache to nowhere, so that
/// they take none of the bandwidth to the third. On Intel they would come to the first-level cache alone,
/// which is smaller than a panel.
enum class Locality { kCaches = 2, kOnce = 0 };

template <class Level, Locality kLocality = Locality::kCaches>
class SpreadPrefetch {
 public:
  /// For a tile of `steps_per_pass` steps in each of `passes` passes.
  SpreadPrefetch(const Tile& tile, int64_t steps_per_pass, int passes) {
    const int64_t steps = steps_per_pass / kPrefetchStride * passes;
    const int64_t bytes = tile.prefetch_bytes;
    if (steps == 0 || bytes <= 0) return;
    const int64_t lines = (bytes + 63) / 64;
    per_step_ = static_cast<int>((lines + steps - 1) / steps);
    // Equal steps of at most a line, in 1/65536 byte, that end where the bytes end.
    advance_ = (static_cast<uint64_t>(bytes) << 16) / static_cast<uint64_t>(steps * per_step_);
    from_ = reinterpret_cast<uintptr_t>(tile.prefetch);
  }

  void step() {
    for (int i = 0; i < per_step_; ++i) {
      __builtin_prefetch(reinterpret_cast<const void*>(from_ + (offset_ >> 16)), 0,
                         static_cast<int>(kLocality));
      offset_ += advance_;
    }
  }

 private:
  uintptr_t from_ = 0;
  uint64_t offset_ = 0;
  uint64_t advance_ = 0;
  int per_step_ = 0;
};

/// Where `step` announces lines itself.
struct NoPrefetch {
  void step() {}
};

/// The rows of a panel that a tile reads one after the other, in two parts: with the second the stream goes
/// on at Tile::prefetch.
class StreamAhead {
 public:
  static constexpr int64_t kRowBytes = 128;  ///< dwords of 32 columns
  struct Part {
    int64_t rows;
    int64_t distance;  ///< bytes from a row to the one to announce with it
  };

  [[gnu::always_inline]] StreamAhead(const Tile& tile, int64_t rows) {
    const auto* const end = static_cast<const std::byte*>(tile.panel) + rows * kRowBytes;
    const int64_t last = tile.ahead / kRowBytes < rows ? tile.ahead / kRowBytes : rows;
    set(parts_[0], rows - last, tile.ahead);
    set(parts_[1], last, tile.ahead + (tile.prefetch == nullptr ? 0 : tile.prefetch - end));
  }

  [[gnu::always_inline]] const Part* begin() const { return parts_; }
  [[gnu::always_inline]] const Part* end() const { return parts_ + 2; }

  /// Two lines with every row, evenly: bursts fill the queue of outstanding lines and keep loads out of it.
  [[gnu::always_inline]] static void announce(const void* row, int64_t distance) {
    const auto* const from = static_cast<const std::byte*>(row) + distance;
    __builtin_prefetch(from, 0, static_cast<int>(Locality::kOnce));
    __builtin_prefetch(from + 64, 0, static_cast<int>(Locality::kOnce));
  }

 private:
  /// One by one: g++ would store both by a vector, and vectors of a tile keep off the stack.
  [[gnu::always_inline]] static void set(Part& part, int64_t rows, int64_t distance) {
    part.rows = rows;
    asm("" : "+m"(part.rows));
    part.distance = distance;
    asm("" : "+m"(part.distance));
  }

  Part parts_[2];
};

/// Calls `step` `count` times. Always inlined: the accumulators that `step` refers to must stay in registers.
template <class Prefetch, class Step>
[[gnu::always_inline]] inline void k_loop(Prefetch& prefetch, int64_t count, Step step) {
  int64_t i = 0;
  for (; i + kPrefetchStride <= count; i += kPrefetchStride) {
#pragma GCC unroll 4
    for (int j = 0; j < kPrefetchStride; ++j) step();
    prefetch.step();
  }
  for (; i < count; ++i) step();
}

}  // namespace megamoe::kernel
