// Many calls on one buffer: no wrong row, no allocation, no system call but futex.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/layer.h"

namespace {

std::atomic<bool> g_count_allocations{false};
std::atomic<int64_t> g_allocations{0};

void* counted_malloc(std::size_t size) {
  if (g_count_allocations.load(std::memory_order_relaxed))
    g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return counted_malloc(size);
}
void* operator new[](std::size_t size) {
  return counted_malloc(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  if (g_count_allocations.load(std::memory_order_relaxed))
    g_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

#if defined(__SANITIZE_THREAD__)
constexpr int kCalls = 400;
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kCalls = 2000;
#else
constexpr int kCalls = 10000;
#endif

// Three layers of a model share one buffer; every rank sleeps at random between calls.
TEST(SteadyState, BackToBackCallsOfThreeLayersNeverMixRows) {
  constexpr int kRanks = 4;
  const test::LayerShape shape{32, 16, 8, 2, "A8W8-INT", "swiglu"};
  std::vector<std::unique_ptr<TestLayer>> layers;
  for (uint32_t seed = 1; seed <= 3; ++seed) layers.push_back(std::make_unique<TestLayer>(shape, seed));
  // A few batches with known results; batch b of layer l goes to every rank in turn.
  constexpr int kBatches = 5;
  std::vector<std::vector<std::vector<RankTokens>>> batches(3);  // [layer][batch][rank]
  for (size_t l = 0; l < 3; ++l) {
    for (int b = 0; b < kBatches; ++b) {
      std::vector<RankTokens> ranks;
      for (int r = 0; r < kRanks; ++r) ranks.push_back(layers[l]->tokens((b * 3 + r * 5) % 8));
      batches[l].push_back(std::move(ranks));
    }
  }
  std::vector<std::vector<std::vector<RankTokens>>> want = batches;
  std::atomic<int64_t> wrong{0};
  test::on_local_ranks(kRanks, [&](int rank, const Group& group) {
    const auto r = static_cast<size_t>(rank);
    auto buffer = SymmBuffer::create(group, layers[0]->config(8), test::options(rank % 2 + 1));
    ASSERT_TRUE(buffer) << buffer.status().message();
    std::vector<std::unique_ptr<MegaMoe>> planned;
    for (const auto& layer : layers) {
      planned.push_back(std::move(MegaMoe::create(*buffer, layer->layer(kRanks, rank, true)).value()));
    }
    std::mt19937 random(static_cast<uint32_t>(rank));
    for (int call = 0; call < kCalls; ++call) {
      const auto l = static_cast<size_t>(call % 3);
      const auto b = static_cast<size_t>(call / 3 % kBatches);
      const bool first = call < 3 * kBatches;
      RankTokens& tokens = batches[l][b][r];
      if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      layers[l]->poison(tokens);
      const Status status = planned[l]->run(layers[l]->args(tokens, layers[l]->local_experts(kRanks, rank)));
      ASSERT_TRUE(status) << status.message();
      if (first) {
        want[l][b][r] = tokens;
      } else if (tokens.y != want[l][b][r].y || tokens.counts != want[l][b][r].counts) {
        wrong.fetch_add(1);
      }
    }
  });
  EXPECT_EQ(wrong.load(), 0);
  // The results the later calls were compared with are the right ones.
  for (size_t l = 0; l < 3; ++l) {
    for (size_t b = 0; b < kBatches; ++b) {
      const std::vector<RankTokens> truth = layers[l]->reference(batches[l][b], 8);
      for (size_t r = 0; r < kRanks; ++r) {
        EXPECT_LT(test::relative_error(want[l][b][r].y, truth[r].y), 1e-3);
        EXPECT_EQ(want[l][b][r].counts, truth[r].counts);
      }
    }
  }
}

// A layer of each scenario as it is by default, and one with every kind of row.
std::vector<std::unique_ptr<TestLayer>> layers_of_all_kinds() {
  test::LayerOptions rich;
  rich.x = rich.y = DType::kFloat16;
  rich.biases = true;
  rich.shared_experts = 2;
  rich.topk_weights_type = 1;
  rich.combine_quant_mode = 4;
  test::LayerOptions merged;
  merged.combine_comm_mode = 1;
  std::vector<std::unique_ptr<TestLayer>> layers;
  for (const test::ScenarioTraits& traits : test::kScenarioTraits) {
    for (const test::LayerOptions& options : {test::LayerOptions(), rich, merged}) {
      layers.push_back(
          std::make_unique<TestLayer>(test::LayerShape{64, 32, 8, 2, traits.name, "swiglu"}, 3, options));
    }
  }
  return layers;
}

std::string described(const TestLayer& layer) {
  return layer.shape().scenario + (layer.options().shared_experts > 0      ? ", every kind of row"
                                   : layer.options().combine_comm_mode > 0 ? ", merged rows"
                                                                           : "");
}

TEST(SteadyState, NoAllocationAfterTheFirstCall) {
  for (const std::unique_ptr<TestLayer>& made : layers_of_all_kinds()) {
    TestLayer& layer = *made;
    std::vector<RankTokens> ranks{layer.tokens(40), layer.tokens(33)};
    std::atomic<int> ready{0};
    test::on_local_ranks(2, [&](int rank, const Group& group) {
      RankTokens& tokens = ranks[static_cast<size_t>(rank)];
      auto buffer = SymmBuffer::create(group, layer.config(40), test::options(2));
      auto moe = MegaMoe::create(*buffer, layer.layer(2, rank, true));
      const CallArgs args = layer.args(tokens, 4);
      ASSERT_TRUE((*moe)->run(args));
      ready.fetch_add(1);
      while (ready.load() < 2) std::this_thread::yield();
      g_count_allocations.store(true);
      bool all_ok = true;
      for (int i = 0; i < 50; ++i) all_ok &= (*moe)->run(args).is_ok();
      ready.fetch_add(1);
      while (ready.load() < 4) std::this_thread::yield();
      g_count_allocations.store(false);
      EXPECT_TRUE(all_ok);
    });
    EXPECT_EQ(g_allocations.exchange(0), 0) << described(layer);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Installed in a child process: any system call but futex, and those a thread needs to report and end, kills
// it.
bool allow_only_futex() {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), const_cast<sock_filter*>(filter)};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  // All threads of the process, the library's own among them.
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

int run_under_filter(TestLayer& layer) {
  std::vector<RankTokens> ranks{layer.tokens(40), layer.tokens(33)};
  std::atomic<int> ready{0};
  std::atomic<int> finished{0};
  std::atomic<bool> filtered{false};
  std::atomic<int> failures{0};
  test::on_local_ranks(2, [&](int rank, const Group& group) {
    RankTokens& tokens = ranks[static_cast<size_t>(rank)];
    auto buffer = SymmBuffer::create(group, layer.config(40), test::options(2));
    auto moe = MegaMoe::create(*buffer, layer.layer(2, rank, true));
    const CallArgs args = layer.args(tokens, 4);
    if (!(*moe)->run(args)) failures.fetch_add(1);
    ready.fetch_add(1);
    if (rank == 0) {
      while (ready.load() < 2) {
      }
      if (!allow_only_futex()) _exit(3);
      filtered.store(true);
    }
    while (!filtered.load()) {
    }
    for (int i = 0; i < 50; ++i) {
      if (!(*moe)->run(args)) failures.fetch_add(1);
    }
    finished.fetch_add(1);
    while (finished.load() < 2) {
    }
    _exit(failures.load() == 0 ? 0 : 4);
  });
  return 5;
}

TEST(SteadyState, NoSystemCallButFutexAfterTheFirstCall) {
  for (const std::unique_ptr<TestLayer>& layer : layers_of_all_kinds()) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(run_under_filter(*layer));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << described(*layer) << ": killed by signal " << WTERMSIG(status)
                                   << " (31 = a system call that is not futex)";
    EXPECT_EQ(WEXITSTATUS(status), 0) << described(*layer);
  }
}
#endif

}  // namespace
}  // namespace megamoe
