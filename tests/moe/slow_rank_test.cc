// A rank whose own threads take long is not late: the deadline is for other ranks.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "support/runs.h"

namespace megamoe {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDeadline{1000};
constexpr timespec kPause = {2, 500000000};
constexpr size_t kBytes = 1 << 16;
std::byte* slow = nullptr;  ///< memory whose first reader has to wait

void let_wait(int, siginfo_t* info, void*) {
  const auto* const at = static_cast<std::byte*>(info->si_addr);
  if (at < slow || at >= slow + kBytes) _exit(1);
  nanosleep(&kPause, nullptr);
  mprotect(slow, kBytes, PROT_READ | PROT_WRITE);
}

// One thread of rank 0 stands still in its dispatch while the other one waits for the rows; rank 1 needs
// nothing of rank 0 after the exchange of records.
TEST(SlowRank, WaitsForOwnThreadsPassTheDeadline) {
  slow = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(slow, MAP_FAILED);
  test::TestLayer layer({64, 32, 2, 1, "A16W16", "swiglu"}, 1);
  std::vector<test::RankTokens> ranks(2, layer.tokens(4));
  for (size_t r = 0; r < 2; ++r) std::fill(ranks[r].ids.begin(), ranks[r].ids.end(), static_cast<int32_t>(r));
  std::vector<test::RankTokens> expected = ranks;
  test::run_local(layer, expected, 4, {.threads = 2});

  std::memcpy(slow, ranks[0].x.data(), ranks[0].x.size() * sizeof(uint16_t));
  struct sigaction waiting = {}, before = {};
  waiting.sa_sigaction = let_wait;
  waiting.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &waiting, &before);
  test::on_local_ranks(2, [&](int rank, const Group& group) {
    test::RankTokens& tokens = ranks[static_cast<size_t>(rank)];
    BufferOptions options = test::options(2);
    options.deadline = kDeadline;
    auto buffer = SymmBuffer::create(group, layer.config(4), options);
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(2, rank, true));
    ASSERT_TRUE(moe) << moe.status().message();
    layer.poison(tokens);
    CallArgs args = layer.args(tokens, layer.local_experts(2, rank));
    if (rank == 0) {
      args.x.data = slow;
      mprotect(slow, kBytes, PROT_NONE);
    }
    const Status status = (*moe)->run(args);
    EXPECT_TRUE(status) << status.message();
  });
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_EQ(test::gather_y(ranks), test::gather_y(expected));
  munmap(slow, kBytes);
}

}  // namespace
}  // namespace megamoe
