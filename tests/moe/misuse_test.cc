// What a caller or the system may do wrong around a call: no rank hangs, crashes or throws.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <future>

#include "comm/ranks.h"
#include "support/layer.h"

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

const test::LayerShape kShape{64, 32, 8, 2, "A16W16", "swiglu"};

TEST(Misuse, ABufferBeyondTheMemoryOfTheHostIsAnError) {
  BufferConfig config = TestLayer(kShape, 1).config(int64_t{1} << 32);
  config.num_topk = 4096;
  config.max_recv_token_num = 16;  // the segment's rows are few, its slots are not
  const auto buffer = SymmBuffer::create(Group::self(), config);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.status().code(), Code::kOutOfMemory) << buffer.status().message();
}

TEST(Misuse, ABufferForPlansTakesNoMemoryAndRefusesCalls) {
  constexpr int kRanks = 1024;
  TestLayer layer(kShape, 1);
  RankTokens tokens = layer.tokens(5);
  BufferConfig config = layer.config(1 << 16);  // rows of that many ranks are beyond the memory of the host
  BufferOptions options = test::options(1);
  const auto groups = Group::local(kRanks);
  ASSERT_TRUE(groups);
  options.plan_only = true;
  // Alone: the other ranks do not come, not to an error either.
  config.ccl_buffer_size = 1;
  const Status small = SymmBuffer::create((*groups)[1], config, options).status();
  EXPECT_EQ(small.message().rfind("ccl_buffer_size = 1: expected 0", 0), 0u) << small.message();
  config.ccl_buffer_size = 0;
  const auto buffer = SymmBuffer::create((*groups)[1], config, options);
  ASSERT_TRUE(buffer) << buffer.status().message();
  auto moe = MegaMoe::create(*buffer, layer.layer(kRanks, 1, true));
  ASSERT_TRUE(moe) << moe.status().message();
  EXPECT_NE((*moe)->describe().find("rank: 1 of 1024"), std::string::npos) << (*moe)->describe();
  const CallArgs args = layer.args(tokens, layer.local_experts(kRanks, 1));
  const std::string refusal = "plan_only = true: expected a buffer with memory for calls";
  EXPECT_EQ((*moe)->run(args).message(), refusal);
  EXPECT_EQ((*buffer)->refuse_call(Status(Code::kInvalidArgument, "no")).message(), refusal);
  (*buffer)->destroy();
  EXPECT_EQ((*moe)->run(args).code(), Code::kClosed);
}

/// Bytes of this process that lie in memory.
int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(Misuse, ABufferForPlansTakesAsMuchMemoryForManyTokensAsForFew) {
  test::LayerOptions options;
  options.shared_experts = 1;
  const TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 1, options);
  BufferOptions plan_only = test::options(1);
  plan_only.plan_only = true;
  int64_t taken[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t before = resident_bytes();
    auto buffer = SymmBuffer::create(Group::self(), layer.config(i == 0 ? 16 : 1 << 24), plan_only);
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe) << moe.status().message();
    taken[i] = resident_bytes() - before;
  }
  EXPECT_LT(taken[1] - taken[0], 1 << 23);  // a byte for each token would be twice that
}

TEST(Misuse, RowsOfHalfBytesAreRefusedBeforeTheyAreCodes) {
  test::LayerOptions options;
  options.shared_experts = 1;
  options.shared_scenario = "A4W4-FP";
  const TestLayer layer({63, 32, 4, 2, "A8W8-FP", "swiglu"}, 1, options);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(8), test::options(1));
  ASSERT_TRUE(buffer) << buffer.status().message();
  Layer shared = layer.layer(1, 0, false);
  LinearWeights& first = shared.shared_weight1;  // rows of whole bytes
  first.weight = {TensorView(first.weight[0].data, DType::kFloat4E2M1, {1, 63, 64})};
  first.k_last = false;
  const auto moe = MegaMoe::create(*buffer, std::move(shared));
  ASSERT_FALSE(moe);
  EXPECT_EQ(moe.status().message(),
            "hidden = 63: expected an even number with shared_expert_quant_out_dtype float4_e2m1");

  const auto routed = SymmBuffer::create(
      Group::self(), TestLayer({63, 32, 4, 2, "A4W4-FP", "swiglu"}, 1).config(8), test::options(1));
  ASSERT_FALSE(routed);
  EXPECT_EQ(routed.status().message(),
            "hidden = 63: expected an even number with dispatch_quant_out_dtype float4_e2m1");
}

TEST(Misuse, ARefusalWithoutAnErrorEndsTheCallOnAllRanks) {
  TestLayer layer(kShape, 1);
  std::vector<RankTokens> ranks{layer.tokens(5), layer.tokens(5)};
  test::on_local_ranks(2, [&](int rank, const Group& group) {
    auto buffer = SymmBuffer::create(group, layer.config(8), test::options(1));
    ASSERT_TRUE(buffer);
    auto moe = MegaMoe::create(*buffer, layer.layer(2, rank, true));
    ASSERT_TRUE(moe);
    const CallArgs args = layer.args(ranks[static_cast<size_t>(rank)], 4);
    EXPECT_TRUE((*moe)->run(args));
    const Status refused = rank == 1 ? (*buffer)->refuse_call(Status::ok()) : (*moe)->run(args);
    EXPECT_EQ(refused.message(), "rank 1: why = ok: expected the error of the call");
    EXPECT_TRUE((*moe)->run(args)) << "the next legal call works";
  });
}

TEST(Misuse, DestroyEndsACallOfAnotherThread) {
  TestLayer layer(kShape, 1);
  std::vector<RankTokens> ranks{layer.tokens(5), layer.tokens(5)};
  std::promise<void> gone;
  test::on_local_ranks(2, [&](int rank, const Group& group) {
    auto buffer = SymmBuffer::create(group, layer.config(8), test::options(2));
    ASSERT_TRUE(buffer);
    auto moe = MegaMoe::create(*buffer, layer.layer(2, rank, true));
    ASSERT_TRUE(moe);
    const CallArgs args = layer.args(ranks[static_cast<size_t>(rank)], 4);
    if (rank == 1) {  // comes when rank 0 is gone
      gone.get_future().wait();
      EXPECT_EQ((*moe)->run(args).code(), Code::kPeerFailed);
      return;
    }
    std::thread destroyer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      (*buffer)->destroy();
    });
    EXPECT_EQ((*moe)->run(args).code(), Code::kClosed);
    destroyer.join();
    gone.set_value();
  });
}

TEST(Misuse, TheDeadlineIsNotForThreadsOfTheSameRank) {
  TestLayer layer({512, 256, 2, 2, "A16W16", "swiglu"}, 1);
  RankTokens tokens = layer.tokens(256);
  BufferOptions options = test::options(4, Isa::kGeneric);
  options.deadline = std::chrono::milliseconds(1);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(256), options);
  ASSERT_TRUE(buffer) << buffer.status().message();
  auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, false));
  ASSERT_TRUE(moe);
  for (int call = 0; call < 3; ++call) {
    const Status status = (*moe)->run(layer.args(tokens, 2));
    EXPECT_TRUE(status) << status.message();
  }
}

TEST(Misuse, ThreadsThatCannotStartAreAnErrorOnAllRanks) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the process when a thread cannot start";
#endif
  TestLayer layer(kShape, 1);
  RankTokens tokens = layer.tokens(5);
  const std::vector<test::Outcome> outcomes = test::run_shm(2, [&](const Group& group) {
    auto buffer = SymmBuffer::create(group, layer.config(8), test::options(group.rank() == 1 ? 64 : 1));
    if (!buffer) return buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(2, group.rank(), true));
    if (!moe) return moe.status().message();
    if (group.rank() == 1) {  // room for a few stacks of threads only
      rlim_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlimit limit{pages * 4096 + (rlim_t{32} << 20), RLIM_INFINITY};
      setrlimit(RLIMIT_AS, &limit);
    }
    const std::string text = (*moe)->run(layer.args(tokens, 4)).message();
    const Status again = (*moe)->run(layer.args(tokens, 4));
    return again.message() == text ? text : text + " | " + again.message();
  });
  for (const test::Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text.rfind("rank 1: cannot start 63 threads", 0), 0u) << outcome.text;
    EXPECT_EQ(outcome.text.find('|'), std::string::npos) << outcome.text;
  }
}

}  // namespace
}  // namespace megamoe
