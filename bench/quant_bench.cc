// Speed of the quantisation rules on bfloat16 rows beside plain reading of the same memory, by level and
// threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "format/bf16.h"
#include "kernel/registry.h"
#include "megamoe/isa.h"

namespace megamoe {
namespace {

constexpr int64_t kColumns = 7168;
constexpr int64_t kMemoryRows = 16384;  // 224 MiB of bfloat16: larger than the caches
constexpr int64_t kCacheRows = 8;

/// Rows of a thread: normally distributed numbers, no two rows alike.
class Rows {
 public:
  explicit Rows(int64_t rows) : rows_(rows) {
    auto pages = base::Pages::allocate(static_cast<size_t>(rows * kColumns) * 2, /*huge=*/true);
    if (!pages) return;
    pages_ = std::move(*pages);
    auto* x = reinterpret_cast<uint16_t*>(pages_.data());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values(1 << 16);
    for (uint16_t& value : values) value = format::bf16_from_float(normal(random));
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * kColumns; ++i) {
      state = state * 1664525u + 1013904223u;
      x[i] = values[state >> 16];
    }
  }
  int64_t rows() const { return rows_; }
  bool ready() const { return pages_.data() != nullptr; }
  const std::byte* row(int64_t i) const { return pages_.data() + i * kColumns * 2; }

 private:
  int64_t rows_;
  base::Pages pages_;
};

void count_bytes(benchmark::State& state) {
  state.counters["GB"] = benchmark::Counter(static_cast<double>(state.iterations()) * kColumns * 2e-9,
                                            benchmark::Counter::kIsRate);
}

/// Where rows come from and codes go to.
struct Place {
  const char* name;
  int64_t rows;       ///< of the input, of all threads where it is memory
  int64_t code_rows;  ///< rows of codes before the first is written again
};
constexpr Place kPlaces[] = {
    {"cache", kCacheRows, kCacheRows},
    {"stream", kMemoryRows, kCacheRows},  // read from memory, codes used while they are in the cache
    {"memory", kMemoryRows, kMemoryRows},
};

/// One row an iteration, threads on rows of their own.
void quantise_rows(benchmark::State& state, const kernel::RowOps& ops, const quant::RuleInfo& rule,
                   const Place& place) {
  const auto per_thread = [&](int64_t rows) { return rows == kCacheRows ? rows : rows / state.threads(); };
  const Rows input(per_thread(place.rows));
  const int64_t code_rows = per_thread(place.code_rows);
  const auto code_bytes = static_cast<size_t>(code_rows * rule.code_bytes(kColumns));
  const auto scale_bytes = static_cast<size_t>(code_rows * rule.scale_bytes(kColumns) + 64);
  auto codes = base::Pages::allocate(code_bytes, true);
  auto scales = base::Pages::allocate(scale_bytes, true);
  if (!input.ready() || !codes || !scales) {
    state.SkipWithError("out of memory");
    return;
  }
  std::memset(codes->data(), 0, code_bytes);
  std::memset(scales->data(), 0, scale_bytes);
  int64_t i = 0;
  for (auto _ : state) {
    const int64_t next = i + 1 == input.rows() ? 0 : i + 1;
    ops.quantise[static_cast<int>(rule.id)]({input.row(i), DType::kBFloat16, kColumns, nullptr, 0.5f, 0.0f,
                                             codes->data() + i % code_rows * rule.code_bytes(kColumns),
                                             scales->data() + i % code_rows * rule.scale_bytes(kColumns),
                                             input.row(next)});
    benchmark::ClobberMemory();
    i = next;
  }
  count_bytes(state);
}

void read_rows(benchmark::State& state) {
  const Rows input(kMemoryRows / state.threads());
  if (!input.ready()) {
    state.SkipWithError("out of memory");
    return;
  }
  int64_t i = 0;
  uint64_t sum[8] = {};
  for (auto _ : state) {
    const auto* words = reinterpret_cast<const uint64_t*>(input.row(i));
    for (int64_t w = 0; w < kColumns / 4; w += 8) {
      for (int j = 0; j < 8; ++j) sum[j] += words[w + j];
    }
    benchmark::DoNotOptimize(sum);
    i = i + 1 == input.rows() ? 0 : i + 1;
  }
  count_bytes(state);
}

void register_rules() {
  const int most = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int threads : {1, most})
    benchmark::RegisterBenchmark("read/memory", read_rows)->Threads(threads)->UseRealTime();
  for (const kernel::RowOps* ops : kernel::all_row_ops()) {
    if (!isa_levels()[static_cast<size_t>(ops->isa)].runnable) continue;
    for (const quant::RuleInfo& rule : quant::rules()) {
      for (const Place& place : kPlaces) {
        auto* bench = benchmark::RegisterBenchmark(
            (std::string(rule.name) + "/" + ops->name + "/" + place.name).c_str(),
            [ops, &rule, &place](benchmark::State& s) { quantise_rows(s, *ops, rule, place); });
        for (int threads : {1, most}) bench->Threads(threads);
        bench->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace megamoe

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  megamoe::register_rules();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
