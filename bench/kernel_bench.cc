// Speed of every matrix kernel of the registry that this machine can run: one thread, weights streamed from
// memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/memory.h"
#include "kernel/registry.h"
#include "megamoe/isa.h"

namespace megamoe {
namespace {

constexpr int64_t kReduction = 2048;
constexpr size_t kWeightBytes = size_t{128} << 20;  // larger than the caches

/// `rows` rows against one panel after the other, rows split evenly over tiles of the kernel.
void run_tiles(benchmark::State& state, const kernel::Gemm& gemm) {
  const int rows = static_cast<int>(state.range(0));
  const int tiles = (rows + gemm.max_rows - 1) / gemm.max_rows;
  const int64_t panel_bytes = kernel::panel_bytes(gemm.family, kReduction);
  const int64_t panels = static_cast<int64_t>(kWeightBytes) / panel_bytes;
  const size_t tile_bytes = base::round_up(gemm.packed_bytes(gemm.max_rows, kReduction), base::kCacheLine);
  const int element = gemm.family == kernel::Family::kBf16 ? 2 : 1;

  auto weights = base::Pages::allocate(kWeightBytes, true);
  auto packed = base::Pages::allocate(tile_bytes * static_cast<size_t>(tiles), true);
  auto sums = base::Pages::allocate(static_cast<size_t>(gemm.max_rows) * kernel::kPanelColumns * 4, false);
  if (!weights || !packed || !sums) {
    state.SkipWithError("out of memory");
    return;
  }
  std::fill_n(weights->data(), kWeightBytes, std::byte{1});
  const std::vector<std::byte> codes(static_cast<size_t>(rows * kReduction * element), std::byte{1});
  const std::vector<int32_t> column_sums(kernel::kPanelColumns, static_cast<int32_t>(kReduction));

  std::vector<kernel::Tile> work;
  for (int i = 0; i < tiles; ++i) {
    const int begin = rows * i / tiles;
    const int count = rows * (i + 1) / tiles - begin;
    std::byte* out = packed->data() + tile_bytes * static_cast<size_t>(i);
    gemm.pack_rows(
        {codes.data() + begin * kReduction * element, kReduction * element, count, kReduction, out});
    kernel::Tile tile{};
    tile.a = out;
    tile.rows = count;
    tile.k = kReduction;
    tile.column_sums = column_sums.data();
    tile.c = sums->data();
    work.push_back(tile);
  }

  int64_t panel = 0;
  for (auto _ : state) {
    const int64_t next = (panel + 1) % panels;
    for (int i = 0; i < tiles; ++i) {
      kernel::Tile& tile = work[static_cast<size_t>(i)];
      tile.panel = weights->data() + panel * panel_bytes;
      tile.prefetch = weights->data() + next * panel_bytes + panel_bytes * i / tiles;  // its share
      tile.prefetch_bytes = panel_bytes * (i + 1) / tiles - panel_bytes * i / tiles;
      gemm.tile(tile);
    }
    benchmark::ClobberMemory();
    panel = next;
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GOP"] = benchmark::Counter(calls * 2e-9 * rows * kernel::kPanelColumns * kReduction,
                                             benchmark::Counter::kIsRate);
  state.counters["GB"] =
      benchmark::Counter(calls * 1e-9 * static_cast<double>(panel_bytes), benchmark::Counter::kIsRate);
}

void register_kernels() {
  for (const kernel::Gemm* gemm : kernel::all_gemms()) {
    const IsaInfo& level = isa_levels()[static_cast<size_t>(gemm->isa)];
    if (!level.runnable) {
      std::printf("skipped %s: %s\n", gemm->name, level.reason.c_str());
      continue;
    }
    auto* bench =
        benchmark::RegisterBenchmark(gemm->name, [gemm](benchmark::State& s) { run_tiles(s, *gemm); });
    for (int rows : {1, 4, 8, 16, 60}) bench->Arg(rows);
    bench->ArgName("rows")->UseRealTime();
  }
}

}  // namespace
}  // namespace megamoe

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  megamoe::register_kernels();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
