// Speed of every matrix kernel of the registry that this machine can run, on one thread: weights streamed
// from memory or from the second-level cache, as strips or, where a kernel reads them, as codes.
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
constexpr int64_t kMemoryBytes = int64_t{128} << 20;  // larger than the caches
constexpr int64_t kCacheBytes = int64_t{384} << 10;   // fits the second one

/// `rows` rows against one panel after the other, rows split evenly over tiles of the kernel.
void run_tiles(benchmark::State& state, const kernel::Gemm& gemm, kernel::WeightCode code, int64_t bytes) {
  const int rows = static_cast<int>(state.range(0));
  const int tiles = (rows + gemm.max_rows - 1) / gemm.max_rows;
  const int64_t one_panel = kernel::stored_panel_bytes(code, gemm.family, kReduction);
  const bool coded = code != kernel::WeightCode::kStrip;
  const int together = coded && rows <= gemm.paired_rows[static_cast<int>(code)] ? 2 : 1;
  const auto run = coded ? gemm.coded_tile[static_cast<int>(code)] : gemm.tile;
  const size_t tile_bytes = base::round_up(gemm.packed_bytes(gemm.max_rows, kReduction), base::kCacheLine);
  const int element = gemm.family == kernel::Family::kBf16 ? 2 : 1;
  const int64_t panel_bytes = one_panel * together;
  const int64_t panels = bytes / panel_bytes;

  auto weights = base::Pages::allocate(static_cast<size_t>(bytes), true);
  auto packed = base::Pages::allocate(tile_bytes * static_cast<size_t>(tiles), true);
  auto sums =
      base::Pages::allocate(static_cast<size_t>(gemm.max_rows) * 2 * kernel::kPanelColumns * 4, false);
  if (!weights || !packed || !sums) {
    state.SkipWithError("out of memory");
    return;
  }
  std::fill_n(weights->data(), bytes, std::byte{127});  // a scale of 1
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
    tile.panels = together;
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
      run(tile);
    }
    benchmark::ClobberMemory();
    panel = next;
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["GOP"] = benchmark::Counter(
      calls * 2e-9 * rows * together * kernel::kPanelColumns * kReduction, benchmark::Counter::kIsRate);
  state.counters["GB"] =
      benchmark::Counter(calls * 1e-9 * static_cast<double>(panel_bytes), benchmark::Counter::kIsRate);
}

constexpr struct {
  kernel::WeightCode code;
  const char* label;
} kCodes[] = {{kernel::WeightCode::kStrip, ""},
              {kernel::WeightCode::kE4M3, "/e4m3"},
              {kernel::WeightCode::kE5M2, "/e5m2"},
              {kernel::WeightCode::kE2M1, "/e2m1"},
              {kernel::WeightCode::kInt4, "/int4"}};

void register_kernels() {
  for (const kernel::Gemm* gemm : kernel::all_gemms()) {
    const IsaInfo& level = isa_levels()[static_cast<size_t>(gemm->isa)];
    if (!level.runnable) {
      std::printf("skipped %s: %s\n", gemm->name, level.reason.c_str());
      continue;
    }
    if (!kernel::runnable(*gemm)) {
      std::printf("skipped %s: this CPU lacks what it needs beyond %s\n", gemm->name, level.name);
      continue;
    }
    for (const auto& [code, label] : kCodes) {
      const int most = code == kernel::WeightCode::kStrip ? 60 : gemm->coded_rows[static_cast<int>(code)];
      if (most == 0) continue;
      for (const bool memory : {true, false}) {
        const std::string name = std::string(gemm->name) + label + (memory ? "" : "/cache");
        const int64_t bytes = memory ? kMemoryBytes : kCacheBytes;
        auto* bench = benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& s) { run_tiles(s, *gemm, code, bytes); });
        for (int rows : {1, 2, 4, 6, 8, 12, 16, 60}) {
          if (rows <= most) bench->Arg(rows);
        }
        bench->ArgName("rows")->UseRealTime();
      }
    }
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
