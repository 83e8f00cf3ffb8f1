// What this machine can do at best, measured.
#include "cli/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "kernel/registry.h"

namespace megamoe::cli {
namespace {

using Clock = ReadRange::Clock;

// Many short rounds, the best one counts: a busy machine then spoils some of them and not the figure.
constexpr auto kMeasure = std::chrono::milliseconds(30);
constexpr int kRounds = 12;
constexpr int64_t kTileK = 256;  // a panel of 16 KiB (bf16): nearest cache
constexpr size_t kReadBytes = size_t{768} << 20, kReadBytesPerThread = size_t{1} << 20;
constexpr size_t kReadAtOnce =
    (size_t{256} << 10) / sizeof(uint64_t);  // words between two looks at the clock

constexpr size_t kLine = base::kCacheLine / sizeof(uint64_t);
constexpr int kReadRounds = 6;  // of each way

/// Adds up `words` words of each of kStreams streams, a line of one after a line of the other. kAhead words
/// ahead lines are announced, for all caches or (kOnce) as read once; 0: none are.
template <size_t kStreams, size_t kAhead, bool kOnce>
void add_up(const uint64_t* from, size_t distance, size_t words) {
  uint64_t sums[kLine] = {};
  for (size_t i = 0; i < words; i += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* const line = from + s * distance + i;
      if constexpr (kAhead > 0) __builtin_prefetch(line + kAhead, 0, kOnce ? 0 : 3);
      for (size_t j = 0; j < kLine; ++j) sums[j] += line[j];
    }
  }
  for (uint64_t& sum : sums) asm volatile("" : "+r"(sum));  // read for nothing else
}

/// Ways to read. Which one is the fastest depends on the CPU and on where the threads run.
struct ReadWay {
  size_t streams;
  void (*run)(const uint64_t* from, size_t distance, size_t words);
};
constexpr ReadWay kReadWays[] = {{1, add_up<1, 4096 / sizeof(uint64_t), false>},
                                 {1, add_up<1, 8192 / sizeof(uint64_t), true>},
                                 {2, add_up<2, 0, false>},
                                 {2, add_up<2, 2048 / sizeof(uint64_t), true>}};

/// Threads begin together: one alone gets more of the memory than its share.
class Start {
 public:
  explicit Start(int threads) : missing_(threads) {}
  void wait() {
    missing_.fetch_sub(1);
    while (missing_.load() > 0) std::this_thread::yield();
  }

 private:
  std::atomic<int> missing_;
};

/// Runs work(thread, until) on all threads and returns the sum of what they return.
template <class Work>
double on_threads(int threads, const Work& work) {
  std::vector<double> results(static_cast<size_t>(threads));
  std::vector<std::thread> team;
  Start start(threads);
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&, t] {
      start.wait();
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
  do {
    for (int i = 0; i < 64; ++i) gemm.tile(tile);
    tiles += 64;
    now = Clock::now();
  } while (now < until);
  return 2.0 * gemm.max_rows * kernel::kPanelColumns * kTileK * static_cast<double>(tiles) /
         std::chrono::duration<double>(now - start).count();
}

double instruction_rate(const kernel::Peak& peak, Clock::time_point until) {
  constexpr int64_t kIterations = 1000;
  int64_t done = 0;
  const auto start = Clock::now();
  auto now = start;
  do {
    peak.run(kIterations);
    done += kIterations;
    now = Clock::now();
  } while (now < until);
  return static_cast<double>(done * peak.operations) / std::chrono::duration<double>(now - start).count();
}

double rate_of(const ArithmeticCeiling& ceiling, Clock::time_point until) {
  return ceiling.peak != nullptr ? instruction_rate(*ceiling.peak, until) : tile_rate(*ceiling.tile, until);
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
    if (rate > best.rate) best = {peak->instruction, rate, peak, nullptr};
  }
  if (best.rate > 0) return best;
  const kernel::Gemm& gemm = kernel::gemm_for(family, isa);
  best = {gemm.name, 0, nullptr, &gemm};
  best.rate = best_round(threads, [&](int, Clock::time_point until) { return rate_of(best, until); });
  return best;
}

Result<ReadRange> ReadRange::make(int threads, bool huge) {
  const size_t bytes = std::max(kReadBytes, kReadBytesPerThread * static_cast<size_t>(threads));
  auto pages = base::Pages::allocate(bytes, huge);
  if (!pages) return pages.status();
  if (!huge) madvise(pages->data(), bytes, MADV_NOHUGEPAGE);
  std::memset(pages->data(), 1, bytes);
  ReadRange range;
  range.pages_ = std::move(*pages);
  range.part_ = bytes / sizeof(uint64_t) / static_cast<size_t>(threads) / kReadAtOnce * kReadAtOnce;
  range.next_.resize(static_cast<size_t>(threads));
  return range;
}

double ReadRange::read(int thread, Clock::time_point until) {
  const auto* const part =
      reinterpret_cast<const uint64_t*>(pages_.data()) + static_cast<size_t>(thread) * part_;
  const ReadWay& way = kReadWays[way_];
  const size_t stream = part_ / way.streams, at_once = kReadAtOnce / way.streams;
  size_t& at = next_[static_cast<size_t>(thread)];
  size_t words = 0;
  const auto start = Clock::now();
  auto now = start;
  do {
    if (at + at_once > stream) at = 0;
    way.run(part + at, stream, at_once);
    words += at_once * way.streams;
    at += at_once;
    now = Clock::now();
  } while (now < until);
  return static_cast<double>(words * sizeof(uint64_t)) / std::chrono::duration<double>(now - start).count();
}

double ReadRange::ceiling(int threads) {
  double best = 0;
  size_t fastest = 0;
  for (int round = 0; round < kReadRounds; ++round) {
    for (way_ = 0; way_ < std::size(kReadWays); ++way_) {
      const double rate = on_threads(threads, [&](int t, Clock::time_point until) { return read(t, until); });
      if (rate > best) best = rate, fastest = way_;
    }
  }
  way_ = fastest;
  return best;
}

Ceilings CeilingPasses::run(base::Team& team, int rank, double seconds, bool reading, bool computing) const {
  const auto together = [&](double share, const auto& work) {
    const auto length =
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds * share));
    std::vector<double> rates(static_cast<size_t>(team.size()));
    Start start(team.size());
    const Status ran = team.run([&](int t) {
      start.wait();
      rates[static_cast<size_t>(t)] = work(t, Clock::now() + length);
    });
    return ran ? std::accumulate(rates.begin(), rates.end(), 0.0) : 0.0;
  };
  Ceilings pass;
  if (reading) {
    pass.bytes = together(
        1, [&](int t, Clock::time_point until) { return range_.read(rank * team.size() + t, until); });
  }
  if (!computing) return pass;
  const auto arithmetic = [&](double share, const ArithmeticCeiling& ceiling) {
    return together(share, [&](int, Clock::time_point until) { return rate_of(ceiling, until); });
  };
  if (linear1_.name == linear2_.name) {
    pass.operations = arithmetic(1, linear1_);
  } else {
    const double first = arithmetic(2.0 / 3, linear1_);
    pass.operations = of_both(first, arithmetic(1.0 / 3, linear2_));
  }
  return pass;
}

}  // namespace megamoe::cli
