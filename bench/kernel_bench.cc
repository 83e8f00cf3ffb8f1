// Speed of every matrix kernel of the registry that this machine can run, on one thread: weights streamed
// from memory or from the second-level cache, as strips or, where a kernel reads them, as codes.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/memory.h"
#include "kernel/registry.h"
#include "megamoe/isa.h"

namespace megamoe {
namespace {

constexpr int64_t kReduction = 2048;
constexpr int64_t kMemoryBytes = int64_t{128} << 20;  // larger than the caches
constexpr int64_t kCacheBytes = int64_t{384} << 10;   // fits the second one

/// How weights are stored, and the name of that.
struct Weights {
  kernel::WeightCode code;
  const char* label;
  kernel::GroupForm groups = {};
  bool least_scales = false;  ///< MX: 2^-127 instead of 1

  int64_t group() const {
    return code == kernel::WeightCode::kE2M1 ? kernel::kMxGroup : groups.group;  // plain kernels ignore it
  }
};

/// `rows` rows against one panel after the other, rows split evenly over tiles of the kernel.
void run_tiles(benchmark::State& state, const kernel::Gemm& gemm, const Weights& form, int64_t bytes) {
  const kernel::WeightCode code = form.code;
  const int rows = static_cast<int>(state.range(0));
  const int tiles = (rows + gemm.max_rows - 1) / gemm.max_rows;
  const int64_t one_panel = kernel::stored_panel_bytes(code, gemm.family, kReduction, form.groups);
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
  const int kept_rows = coded ? gemm.kept_rows[static_cast<int>(code)] : 0;
  const bool keeps = kept_rows != 0 && rows >= kept_rows;  // weights are decoded once for all tiles
  auto kept = base::Pages::allocate(static_cast<size_t>(kernel::kept_bytes(kReduction)), false);
  if (!weights || !packed || !sums || !kept) {
    state.SkipWithError("out of memory");
    return;
  }
  // Numbers of any format, a zero point below a quarter of a byte's range.
  std::fill_n(weights->data(), bytes, std::byte{form.groups.zeros ? uint8_t{7} : uint8_t{0x37}});
  if (coded && form.code <= kernel::WeightCode::kE2M1) {
    const int64_t group_bytes = one_panel / kernel::groups_of(kReduction, kernel::kMxGroup);
    const std::byte scale{form.least_scales ? uint8_t{0} : uint8_t{127}};
    for (int64_t at = 0; at + group_bytes <= bytes; at += group_bytes) {
      std::fill_n(weights->data() + at, kernel::kPanelColumns, scale);
    }
  }
  const std::vector<std::byte> codes(static_cast<size_t>(rows * kReduction * element), std::byte{1});
  const std::vector<int32_t> column_sums(kernel::kPanelColumns, static_cast<int32_t>(kReduction));

  std::vector<kernel::Tile> work;
  for (int i = 0; i < tiles; ++i) {
    const int begin = rows * i / tiles;
    const int count = rows * (i + 1) / tiles - begin;
    std::byte* out = packed->data() + tile_bytes * static_cast<size_t>(i);
    kernel::PackRows pack{codes.data() + begin * kReduction * element, kReduction * element, count,
                          kReduction, out};
    pack.group = form.group();
    gemm.pack_rows(pack);
    kernel::Tile tile{};
    tile.a = out;
    tile.rows = count;
    tile.k = kReduction;
    tile.column_sums = column_sums.data();
    tile.c = sums->data();
    tile.kept = keeps ? kept->data() : nullptr;
    tile.decoded = i > 0;
    const base::MemoryHabits habits = base::memory_habits(base::this_cpu());
    tile.read_once = habits.keeps_read_once;
    const kernel::Gemm::Stream& stream = gemm.stream[static_cast<int>(code)];
    if (habits.follows_streams && tiles == 1 && count <= stream.most_rows) tile.ahead = stream.ahead;
    tile.panels = together;
    tile.group = form.group();
    tile.form = form.groups;
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

const Weights kWeights[] = {
    {kernel::WeightCode::kStrip, ""},
    {kernel::WeightCode::kE4M3, "/e4m3"},
    {kernel::WeightCode::kE5M2, "/e5m2"},
    {kernel::WeightCode::kE2M1, "/e2m1"},
    {kernel::WeightCode::kE4M3, "/e4m3_least", {}, true},
    {kernel::WeightCode::kE5M2, "/e5m2_least", {}, true},
    {kernel::WeightCode::kE2M1, "/e2m1_least", {}, true},
    {kernel::WeightCode::kInt4, "/int4"},
    {kernel::WeightCode::kInt4Groups, "/int4_32", {32, DType::kBFloat16, false}},
    {kernel::WeightCode::kInt4Groups, "/int4_128", {128, DType::kBFloat16, false}},
    {kernel::WeightCode::kInt4Groups, "/int4_128_zeros", {128, DType::kBFloat16, true}},
    {kernel::WeightCode::kE4M3Groups, "/e4m3_128", {128, DType::kFloat32, false}},
};

void register_kernels() {
  const auto plain = kernel::all_gemms(), groups = kernel::all_group_gemms();
  std::vector<const kernel::Gemm*> gemms(plain.begin(), plain.end());
  gemms.insert(gemms.end(), groups.begin(), groups.end());
  for (const kernel::Gemm* gemm : gemms) {
    const IsaInfo& level = isa_levels()[static_cast<size_t>(gemm->isa)];
    if (!level.runnable) {
      std::fprintf(stderr, "skipped %s: %s\n", gemm->name, level.reason.c_str());
      continue;
    }
    if (!kernel::runnable(*gemm)) {
      std::fprintf(stderr, "skipped %s: this CPU lacks what it needs beyond %s\n", gemm->name, level.name);
      continue;
    }
    // Group kernels multiply strips with scales beside them, which nothing here makes.
    const bool strips = std::find(plain.begin(), plain.end(), gemm) != plain.end();
    for (const Weights& form : kWeights) {
      const bool strip = form.code == kernel::WeightCode::kStrip;
      // Where one tile reads codes at any number of rows, so do several.
      const int coded = gemm->coded_rows[static_cast<int>(form.code)];
      const int most = (strip ? strips : coded >= gemm->max_rows) ? 60 : coded;
      if (most == 0) continue;
      for (const bool memory : {true, false}) {
        const std::string name = std::string(gemm->name) + form.label + (memory ? "" : "/cache");
        const int64_t bytes = memory ? kMemoryBytes : kCacheBytes;
        auto* bench = benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& s) { run_tiles(s, *gemm, form, bytes); });
        for (int rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 24, 26, 60}) {
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
