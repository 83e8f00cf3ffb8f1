// What this machine can do at best, measured.
#include "cli/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "kernel/registry.h"

namespace megamoe::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Many short rounds, the best one counts: a busy machine then spoils some of them and not the figure.
constexpr auto kMeasure = std::chrono::milliseconds(30);
constexpr int kRounds = 12;
constexpr int64_t kTileK = 256;  // a panel of 16 KiB (bf16): nearest cache
constexpr size_t kReadBytes = size_t{768} << 20;
constexpr int kReadParts = 4;  // one part a round, so that no part is in a cache when its turn comes

/// Runs work(thread, until) on all threads and returns the sum of what they return.
template <class Work>
double on_threads(int threads, const Work& work) {
  std::vector<double> results(static_cast<size_t>(threads));
  std::vector<std::thread> team;
  std::atomic<int> ready{0};
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      results[static_cast<size_t>(t)] = work(t, Clock::now() + kMeasure);
    });
  }
  for (std::thread& thread : team) thread.join();
  double sum = 0;
  for (double r : results) sum += r;
  return sum;
}

double tile_rate(const kernel::Gemm& gemm, Clock::time_point until) {
  const int64_t panel_bytes = kernel::panel_bytes(gemm.family, kTileK);
  const size_t packed_bytes = base::round_up(gemm.packed_bytes(gemm.max_rows, kTileK), base::kCacheLine);
  const size_t c_bytes = static_cast<size_t>(gemm.max_rows) * kernel::kPanelColumns * 4;
  const size_t row_bytes = static_cast<size_t>(kTileK * (4 / kernel::k_per_dword(gemm.family)));
  auto pages = base::Pages::allocate(static_cast<size_t>(panel_bytes) + packed_bytes + c_bytes +
                                         row_bytes * static_cast<size_t>(gemm.max_rows) + 256,
                                     /*huge=*/false);
  if (!pages) return 0;
  std::byte* const panel = pages->data();
  std::byte* const packed = panel + panel_bytes;
  std::byte* const c = packed + packed_bytes;
  std::byte* const rows = c + c_bytes;
  const int32_t sums[kernel::kPanelColumns] = {};
  gemm.pack_rows({rows, static_cast<ptrdiff_t>(row_bytes), gemm.max_rows, kTileK, packed});
  const kernel::Tile tile{packed, gemm.max_rows, kTileK, panel, sums, c, nullptr, 0};
  int64_t tiles = 0;
  const auto start = Clock::now();
  auto now = start;
  while (now < until) {
    for (int i = 0; i < 64; ++i) gemm.tile(tile);
    tiles += 64;
    now = Clock::now();
  }
  return 2.0 * gemm.max_rows * kernel::kPanelColumns * kTileK * static_cast<double>(tiles) /
         std::chrono::duration<double>(now - start).count();
}

double instruction_rate(const kernel::Peak& peak, Clock::time_point until) {
  constexpr int64_t kIterations = 1000;
  int64_t done = 0;
  const auto start = Clock::now();
  auto now = start;
  while (now < until) {
    peak.run(kIterations);
    done += kIterations;
    now = Clock::now();
  }
  return static_cast<double>(done * peak.operations) / std::chrono::duration<double>(now - start).count();
}

template <class Work>
double best_round(int threads, const Work& work) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) best = std::max(best, on_threads(threads, work));
  return best;
}

bool applies(kernel::PeakKind kind, kernel::Family family) {
  if (family == kernel::Family::kS8) return kind == kernel::PeakKind::kInt8;
  return kind == kernel::PeakKind::kFloat32 || kind == kernel::PeakKind::kBf16;
}

}  // namespace

double peak_rate(const kernel::Peak& peak, int threads) {
  return best_round(threads, [&](int, Clock::time_point until) { return instruction_rate(peak, until); });
}

ArithmeticCeiling arithmetic_ceiling(kernel::Family family, Isa isa, int threads) {
  ArithmeticCeiling best;
  for (const kernel::Peak* peak : kernel::all_peaks()) {
    if (peak->isa > isa || !applies(peak->kind, family) || !kernel::runnable(*peak)) continue;
    const double rate = peak_rate(*peak, threads);
    if (rate > best.rate) best = {peak->instruction, rate};
  }
  if (best.rate > 0) return best;
  const kernel::Gemm& gemm = kernel::gemm_for(family, isa);
  return {gemm.name,
          best_round(threads, [&](int, Clock::time_point until) { return tile_rate(gemm, until); })};
}

double read_ceiling(int threads, bool huge) {
  auto pages = base::Pages::allocate(kReadBytes, huge);
  if (!pages) return 0;
  if (!huge) madvise(pages->data(), kReadBytes, MADV_NOHUGEPAGE);
  std::memset(pages->data(), 1, kReadBytes);
  const size_t part = kReadBytes / sizeof(uint64_t) / kReadParts;
  const size_t words = part / static_cast<size_t>(threads);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    best = std::max(best, on_threads(threads, [&](int t, Clock::time_point) {
                      const auto* data = reinterpret_cast<const uint64_t*>(pages->data()) +
                                         static_cast<size_t>(round % kReadParts) * part +
                                         static_cast<size_t>(t) * words;
                      const auto start = Clock::now();
                      uint64_t sums[8] = {};
                      for (size_t i = 0; i + 8 <= words; i += 8) {
                        for (int j = 0; j < 8; ++j) sums[j] += data[i + static_cast<size_t>(j)];
                      }
                      uint64_t sum = 0;
                      for (uint64_t s : sums) sum += s;
                      sink.fetch_add(sum, std::memory_order_relaxed);
                      return static_cast<double>(words * sizeof(uint64_t)) /
                             std::chrono::duration<double>(Clock::now() - start).count();
                    }));
  }
  return best;
}

}  // namespace megamoe::cli
