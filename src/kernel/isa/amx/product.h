// The tile registers of a product of up to 32 rows by 32 columns, and its k loop. A panel is read as it is:
// 16 of its dword rows by 16 columns are one B tile, or fewer where the blocks of k are shorter.
#pragma once

#include <cstring>

#include "kernel/contract.h"
#include "kernel/isa/amx/tiles.h"
#include "kernel/k_loop.h"

namespace megamoe::isa_amx {

inline constexpr int kTileRows = 16;  // of accumulators, and dword rows of B
inline constexpr int kTileRowBytes = 64;
inline constexpr int kMaxRows = 2 * kTileRows;
inline constexpr ptrdiff_t kPanelRowBytes = kernel::kPanelColumns * 4;

constexpr int64_t code_bytes(kernel::Family family) {
  return family == kernel::Family::kBf16 ? 2 : 1;
}

/// Rows of codes as [blocks of block_bytes of k][rows][block_bytes], zero past K. Returns where it ends.
inline std::byte* pack_blocks(const std::byte* codes, ptrdiff_t row_bytes, int rows, int64_t bytes,
                              int64_t block_bytes, std::byte* out) {
  for (int64_t at = 0; at < bytes; at += block_bytes) {
    const auto count = static_cast<size_t>(bytes - at < block_bytes ? bytes - at : block_bytes);
    const std::byte* from = codes + at;
    for (int r = 0; r < rows; ++r, from += row_bytes, out += block_bytes) {
      if (count < static_cast<size_t>(block_bytes)) std::memset(out, 0, static_cast<size_t>(block_bytes));
      std::memcpy(out, from, count);
    }
  }
  return out;
}

/// Registers: accumulators [row half][column half], the row halves of A, the column halves of B.
enum : int { kC00, kC01, kC10, kC11, kA0, kA1, kB0, kB1 };

/// The last dword rows of a panel, zeros below: nothing is read past its end.
struct alignas(64) Tail {
  std::byte rows[kTileRows * kPanelRowBytes];
};
[[gnu::noinline]] inline void fill(Tail& tail, const std::byte* from, size_t bytes) {
  std::memset(&tail, 0, sizeof(Tail));
  std::memcpy(tail.rows, from, bytes);
}

/// A product of up to kTileRows rows, or with kTwoHalves of more. Who makes one calls release() when it is
/// done: a destructor would bring the tables of exceptions into a level.
template <kernel::Family kFamily, bool kTwoHalves>
class Product {
 public:
  /// Sets the shapes for blocks of so many bytes of k, and zeroes the sums.
  Product(int rows, int64_t block_bytes)
      : first_(kTwoHalves ? (rows + 1) / 2 : rows), rows_(rows), block_bytes_(block_bytes) {
    configure_shapes(first_, rows - first_, static_cast<int>(block_bytes));
  }

  void zero_sums() {
    zero<kC00>();
    zero<kC01>();
    if constexpr (!kTwoHalves) return;
    zero<kC10>();
    zero<kC11>();
  }
  void load_sums(const void* from) {
    const auto* const c = static_cast<const std::byte*>(from);
    load<kC00>(c, kPanelRowBytes);
    load<kC01>(c + kTileRowBytes, kPanelRowBytes);
    if constexpr (!kTwoHalves) return;
    load<kC10>(c + first_ * kPanelRowBytes, kPanelRowBytes);
    load<kC11>(c + first_ * kPanelRowBytes + kTileRowBytes, kPanelRowBytes);
  }
  void store_sums(void* to) const {
    auto* const c = static_cast<std::byte*>(to);
    store<kC00>(c, kPanelRowBytes);
    store<kC01>(c + kTileRowBytes, kPanelRowBytes);
    if constexpr (!kTwoHalves) return;
    store<kC10>(c + first_ * kPanelRowBytes, kPanelRowBytes);
    store<kC11>(c + first_ * kPanelRowBytes + kTileRowBytes, kPanelRowBytes);
  }

  /// Adds the products of `dwords` dword rows of a panel with packed blocks.
  template <class Prefetch>
  void add(const std::byte* a, const std::byte* b, int64_t dwords, Prefetch& prefetch) {
    const int64_t block = block_bytes_ / 4;
    for (; dwords >= block; dwords -= block) {
      step(a, b);
      for (int64_t p = 0; p < block; p += kernel::kPrefetchStride) prefetch.step();
      a += rows_ * block_bytes_;
      b += block * kPanelRowBytes;
    }
    if (dwords == 0) return;
    Tail tail;
    fill(tail, b, static_cast<size_t>(dwords * kPanelRowBytes));
    step(a, tail.rows);
  }

 private:
  [[gnu::noinline]] static void configure_shapes(int first, int second, int block_bytes) {
    TileConfig config;
    const auto shape = [&config](int tile, int rows, int bytes) {
      if (rows == 0) return;
      config.rows[tile] = static_cast<uint8_t>(rows);
      config.row_bytes[tile] = static_cast<uint16_t>(bytes);
    };
    for (int tile : {kC00, kC01}) shape(tile, first, kTileRowBytes);
    for (int tile : {kC10, kC11}) shape(tile, second, kTileRowBytes);
    shape(kA0, first, block_bytes);
    shape(kA1, second, block_bytes);
    for (int tile : {kB0, kB1}) shape(tile, block_bytes / 4, kTileRowBytes);
    configure(config);
  }

  /// One block of k.
  void step(const std::byte* a, const std::byte* b) {
    load<kB0>(b, kPanelRowBytes);
    load<kA0>(a, block_bytes_);
    dot<kFamily, kC00, kA0, kB0>();
    load<kB1>(b + kTileRowBytes, kPanelRowBytes);
    dot<kFamily, kC01, kA0, kB1>();
    if constexpr (!kTwoHalves) return;
    load<kA1>(a + first_ * block_bytes_, block_bytes_);
    dot<kFamily, kC10, kA1, kB0>();
    dot<kFamily, kC11, kA1, kB1>();
  }

  int first_, rows_;
  int64_t block_bytes_;
};

}  // namespace megamoe::isa_amx
