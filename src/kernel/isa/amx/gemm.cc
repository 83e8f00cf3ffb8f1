// s8 and bf16 tiles by AMX: up to 32 rows x 32 columns in four accumulator tiles. A panel is read as it is:
// 16 of its dword rows by 16 columns are one B tile. tdpbf16ps treats subnormal inputs and sums as zero.
#include <cstring>

#include "kernel/contract.h"
#include "kernel/isa/amx/tiles.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"

namespace megamoe::isa_amx {
namespace {

using kernel::Family;
using kernel::kPanelColumns;
struct Level;

constexpr int kTileRows = 16;  // of accumulators, and dword rows of B
constexpr int kTileRowBytes = 64;
constexpr int kMaxRows = 2 * kTileRows;
constexpr ptrdiff_t kPanelRowBytes = kPanelColumns * 4;

constexpr int64_t code_bytes(Family family) {
  return family == Family::kBf16 ? 2 : 1;
}
/// Steps of the k loop: 64 bytes of codes each.
constexpr int64_t blocks(Family family, int64_t k) {
  return (k * code_bytes(family) + kTileRowBytes - 1) / kTileRowBytes;
}

/// Activations as [blocks of 64 bytes of k][rows][64 bytes], zero past K.
template <Family kFamily>
size_t packed_bytes(int rows, int64_t k) {
  return static_cast<size_t>(rows) * static_cast<size_t>(blocks(kFamily, k)) * kTileRowBytes;
}

template <Family kFamily>
void pack_rows(const kernel::PackRows& p) {
  const int64_t bytes = p.k * code_bytes(kFamily);
  std::byte* out = static_cast<std::byte*>(p.out);
  for (int64_t at = 0; at < bytes; at += kTileRowBytes) {
    const auto count = static_cast<size_t>(bytes - at < kTileRowBytes ? bytes - at : kTileRowBytes);
    const std::byte* from = static_cast<const std::byte*>(p.codes) + at;
    for (int r = 0; r < p.rows; ++r, from += p.row_bytes, out += kTileRowBytes) {
      if (count < kTileRowBytes) std::memset(out, 0, kTileRowBytes);
      std::memcpy(out, from, count);
    }
  }
}

/// Registers: accumulators [row half][column half], the row halves of A, the column halves of B.
constexpr int kC00 = 0, kC01 = 1, kC10 = 2, kC11 = 3, kA0 = 4, kA1 = 5, kB0 = 6, kB1 = 7;

[[gnu::noinline]] void configure_shapes(int first_rows, int second_rows) {
  TileConfig config;
  const auto shape = [&config](int tile, int rows) {
    if (rows == 0) return;
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = kTileRowBytes;
  };
  for (int tile : {kC00, kC01, kA0}) shape(tile, first_rows);
  for (int tile : {kC10, kC11, kA1}) shape(tile, second_rows);
  for (int tile : {kB0, kB1}) shape(tile, kTileRows);
  configure(config);
}

/// One step: 16 dword rows of the panel at `b`, 64 bytes of every row at `a`.
template <Family kFamily, bool kTwoHalves>
inline void step(const std::byte* a, int first_rows, const std::byte* b) {
  load<kB0>(b, kPanelRowBytes);
  load<kA0>(a, kTileRowBytes);
  dot<kFamily, kC00, kA0, kB0>();
  load<kB1>(b + kTileRowBytes, kPanelRowBytes);
  dot<kFamily, kC01, kA0, kB1>();
  if constexpr (kTwoHalves) {
    load<kA1>(a + first_rows * kTileRowBytes, kTileRowBytes);
    dot<kFamily, kC10, kA1, kB0>();
    dot<kFamily, kC11, kA1, kB1>();
  }
}

/// The last dword rows of a panel, zeros below: nothing is read past its end.
struct alignas(64) Tail {
  std::byte rows[kTileRows * kPanelRowBytes];
};
[[gnu::noinline]] void fill(Tail& tail, const std::byte* from, size_t bytes) {
  std::memset(&tail, 0, sizeof(Tail));
  std::memcpy(tail.rows, from, bytes);
}

template <Family kFamily, bool kTwoHalves>
void tile_amx(const kernel::Tile& t) {
  const int first_rows = kTwoHalves ? (t.rows + 1) / 2 : t.rows;
  configure_shapes(first_rows, t.rows - first_rows);
  std::byte* const c = static_cast<std::byte*>(t.c);
  if (t.accumulate) {
    load<kC00>(c, kPanelRowBytes);
    load<kC01>(c + kTileRowBytes, kPanelRowBytes);
    if constexpr (kTwoHalves) {
      load<kC10>(c + first_rows * kPanelRowBytes, kPanelRowBytes);
      load<kC11>(c + first_rows * kPanelRowBytes + kTileRowBytes, kPanelRowBytes);
    }
  }
  const std::byte* a =
      static_cast<const std::byte*>(t.a) + blocks(kFamily, t.k_begin) * t.rows * kTileRowBytes;
  const std::byte* b = static_cast<const std::byte*>(t.panel);
  const int64_t dwords = kernel::panel_bytes(kFamily, t.k) / kPanelRowBytes;
  kernel::SpreadPrefetch<Level> prefetch(t, dwords, 1);
  for (int64_t i = 0; i < dwords / kTileRows; ++i) {
    step<kFamily, kTwoHalves>(a, first_rows, b);
    for (int p = 0; p < kTileRows; p += kernel::kPrefetchStride) prefetch.step();
    a += t.rows * kTileRowBytes;
    b += kTileRows * kPanelRowBytes;
  }
  if (const int64_t left = dwords % kTileRows; left != 0) {
    Tail tail;
    fill(tail, b, static_cast<size_t>(left * kPanelRowBytes));
    step<kFamily, kTwoHalves>(a, first_rows, tail.rows);
  }
  store<kC00>(c, kPanelRowBytes);
  store<kC01>(c + kTileRowBytes, kPanelRowBytes);
  if constexpr (kTwoHalves) {
    store<kC10>(c + first_rows * kPanelRowBytes, kPanelRowBytes);
    store<kC11>(c + first_rows * kPanelRowBytes + kTileRowBytes, kPanelRowBytes);
  }
  release();
}

template <Family kFamily>
void run(const kernel::Tile& t) {
  t.rows > kTileRows ? tile_amx<kFamily, true>(t) : tile_amx<kFamily, false>(t);
}

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_32x32_amx",
    .isa = Isa::kAmx,
    .family = Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = packed_bytes<Family::kBf16>,
    .pack_rows = pack_rows<Family::kBf16>,
    .tile = run<Family::kBf16>,
};

constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_32x32_amx",
    .isa = Isa::kAmx,
    .family = Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = packed_bytes<Family::kS8>,
    .pack_rows = pack_rows<Family::kS8>,
    .tile = run<Family::kS8>,
};

}  // namespace megamoe::isa_amx
