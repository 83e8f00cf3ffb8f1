// The fused layer over processes: the bits of local ranks, and clean ends when ranks die, stop or leave.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/ranks.h"
#include "support/runs.h"

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

std::string hex(const std::vector<uint16_t>& values) {
  std::string text;
  char digits[8];
  for (const uint16_t value : values) {
    std::snprintf(digits, sizeof digits, "%04x", value);
    text += digits;
  }
  return text;
}

// One rank's part: buffer, plan, `calls` runs of the same tokens; the text is y in hex, or the error.
std::string run_rank(const TestLayer& layer, RankTokens tokens, const Group& group, int threads, int calls,
                     const std::function<void(int)>& before = {}) {
  BufferOptions options = test::options(threads);
  options.deadline = std::chrono::seconds(20);
  auto buffer = SymmBuffer::create(group, layer.config(64), options);
  if (!buffer) return "create: " + buffer.status().message();
  auto moe = MegaMoe::create(*buffer, layer.layer(group.size(), group.rank(), true));
  if (!moe) return "plan: " + moe.status().message();
  for (int call = 0; call < calls; ++call) {
    if (before) before(call);
    layer.poison(tokens);
    const Status status = (*moe)->run(layer.args(tokens, layer.local_experts(group.size(), group.rank())));
    if (!status) return std::string("run: ") + code_name(status.code()) + ": " + status.message();
  }
  return hex(tokens.y);
}

class Transports : public testing::TestWithParam<const char*> {};

// Texts of all ranks, one after the other.
std::string run_on(const char* transport, const TestLayer& layer, const std::vector<RankTokens>& ranks,
                   int threads) {
  std::string text;
  for (const test::Outcome& outcome :
       test::run_ranks(test::transport(transport), static_cast<int>(ranks.size()), [&](const Group& group) {
         return run_rank(layer, ranks[static_cast<size_t>(group.rank())], group, threads, 3);
       })) {
    EXPECT_EQ(outcome.signal, 0);
    text += outcome.text;
  }
  return text;
}

TEST_P(Transports, ShmHasTheBitsOfLocalForAnyNumberOfRanks) {
  TestLayer layer({96, 40, 8, 3, GetParam(), "swiglu"}, 5);
  const std::vector<std::vector<int64_t>> splits = {{40}, {13, 27}, {0, 5, 1, 34}, {5, 5, 5, 5, 5, 5, 5, 5}};
  const RankTokens all = layer.tokens(40);
  std::string want;
  for (const std::vector<int64_t>& sizes : splits) {
    const std::vector<RankTokens> ranks = test::split(all, sizes);
    for (const char* transport : {"local", "shm"}) {
      for (const int threads : {1, 2}) {
        const std::string got = run_on(transport, layer, ranks, threads);
        if (want.empty()) want = got;
        EXPECT_EQ(got, want) << transport << ", " << sizes.size() << " ranks, " << threads << " threads";
      }
    }
  }
}

TEST_P(Transports, ShmHasTheBitsOfLocalWithEveryKindOfRow) {
  for (const int merge : {0, 1, 2}) {
    test::LayerOptions options;
    options.x = options.y = DType::kFloat16;
    options.biases = true;
    options.shared_experts = 2;
    options.topk_weights_type = 1;
    options.combine_quant_mode = merge == 0 ? 4 : 0;
    options.combine_comm_mode = merge;
    options.topo_type = merge == 2 ? 1 : 0;
    TestLayer layer({70, 38, 7, 3, GetParam(), "swigluoai"}, 5, options);
    const std::vector<RankTokens> ranks = test::split(layer.tokens(31), {7, 0, 23, 1});
    EXPECT_EQ(run_on("shm", layer, ranks, 2), run_on("local", layer, ranks, 1)) << "merged by " << merge;
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Transports, testing::ValuesIn(test::scenario_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

constexpr int64_t kPastUInt32 = int64_t{3} << 33;  // the words of the record hold all 64 bits

/// What three ranks return that state values of an attribute in calls one after another, a line per call.
std::vector<test::Outcome> outcomes_of(const char* transport, int64_t CallArgs::*attribute,
                                       const std::vector<std::pair<int64_t, int64_t>>& of_one_and_others) {
  TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 1);
  const RankTokens tokens = layer.tokens(5);
  return test::run_ranks(test::transport(transport), 3, [&](const Group& group) -> std::string {
    RankTokens own = tokens;
    auto buffer = SymmBuffer::create(group, layer.config(8), test::options(1));
    if (!buffer) return "create: " + buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(3, group.rank(), true));
    if (!moe) return "plan: " + moe.status().message();
    CallArgs args = layer.args(own, layer.local_experts(3, group.rank()));
    std::string text;
    for (const auto& [of_one, of_others] : of_one_and_others) {
      args.*attribute = group.rank() == 1 ? of_one : of_others;
      const std::vector<uint16_t> before = own.y;
      const Status status = (*moe)->run(args);
      text += (status ? "ok" : status.message()) + "\n";
      if (!status && own.y != before) text += "y was written\n";
    }
    return text;
  });
}

TEST(Agreement, AGlobalBsThatDiffersIsTheSameErrorOnAllRanksAndTheNextCallWorks) {
  const std::string ends = ": expected the same value on every rank\n";
  const std::string least =
      ": expected 0, or a multiple of 3 (ep_world_size) from 15 (tokens of x times ep_world_size) on\n";
  for (const char* transport : {"local", "shm"}) {
    const auto outcomes = outcomes_of(
        transport, &CallArgs::global_bs,
        {{18, 15}, {0, 15}, {kPastUInt32, 2 * kPastUInt32}, {14, 15}, {16, 16}, {18, 18}, {0, 0}});
    for (const test::Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.text, "global_bs = 15 on ranks 0, 2; 18 on rank 1" + ends +
                                  "global_bs = 15 on ranks 0, 2; 0 on rank 1" + ends +
                                  "global_bs = 51539607552 on ranks 0, 2; 25769803776 on rank 1" + ends +
                                  "rank 1: global_bs = 14" + least + "rank 0: global_bs = 16" + least +
                                  "ok\nok\n")
          << transport;
    }
  }
}

TEST(Agreement, ACclBufferSizeThatDiffersIsTheSameErrorOnAllRanksAndTheNextCallWorks) {
  TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 1);
  const int64_t bytes = *mega_moe_ccl_buffer_size(3, layer.config(8));
  const std::string needed = std::to_string(bytes), more = std::to_string(bytes + 1);
  const std::string ends = ": expected the same value on every rank\n";
  for (const char* transport : {"local", "shm"}) {
    const auto outcomes = outcomes_of(transport, &CallArgs::ccl_buffer_size,
                                      {{bytes + 1, bytes},
                                       {0, bytes},
                                       {kPastUInt32, 2 * kPastUInt32},
                                       {bytes - 1, bytes},
                                       {-1, -1},
                                       {bytes + 1, bytes + 1},
                                       {bytes, bytes}});
    for (const test::Outcome& outcome : outcomes) {
      const std::string least =
          ": expected 0 (not stated) or at least " + needed + " bytes, those of the buffer\n";
      EXPECT_EQ(outcome.text, "ccl_buffer_size = " + needed + " on ranks 0, 2; " + more + " on rank 1" +
                                  ends + "ccl_buffer_size = " + needed + " on ranks 0, 2; 0 on rank 1" +
                                  ends +
                                  "ccl_buffer_size = 51539607552 on ranks 0, 2; 25769803776 on rank 1" +
                                  ends + "rank 1: ccl_buffer_size = " + std::to_string(bytes - 1) + least +
                                  "rank 0: ccl_buffer_size = -1" + least + "ok\nok\n")
          << transport;
    }
  }
}

TEST(Faults, AKilledRankIsNamedByEverySurvivor) {
  TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 5);
  const RankTokens tokens = layer.tokens(16);
  for (const int victim : {0, 2}) {
    const std::vector<test::Outcome> outcomes = test::run_shm(4, [&](const Group& group) {
      return run_rank(layer, tokens, group, 1, 5000, [&](int call) {
        if (group.rank() == victim && call == 7) raise(SIGKILL);
      });
    });
    for (int r = 0; r < 4; ++r) {
      const test::Outcome& outcome = outcomes[static_cast<size_t>(r)];
      if (r == victim) {
        EXPECT_EQ(outcome.signal, SIGKILL);
        continue;
      }
      EXPECT_EQ(outcome.text.rfind("run: peer failed", 0), 0u) << outcome.text;
      EXPECT_NE(outcome.text.find("rank " + std::to_string(victim)), std::string::npos) << outcome.text;
    }
  }
}

TEST(Faults, ARankKilledAtARandomMomentNeverHangsOrCorruptsTheOthers) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not support threads in the child of a process with threads";
#endif
  TestLayer layer({64, 32, 8, 2, "A8W8-INT", "swiglu"}, 6);
  const RankTokens tokens = layer.tokens(24);
  const std::string want = run_rank(layer, tokens, Group::self(), 1, 1);
  std::mt19937 random(3);
  for (int round = 0; round < 6; ++round) {
    const auto delay = std::chrono::microseconds(500 + random() % 20000);
    const std::vector<test::Outcome> outcomes = test::run_shm(3, [&](const Group& group) {
      return run_rank(layer, tokens, group, 1, 1'000'000, [&](int call) {
        if (group.rank() != 1 || call != 0) return;
        std::thread([delay] {
          std::this_thread::sleep_for(delay);
          raise(SIGKILL);
        }).detach();
      });
    });
    for (const int r : {0, 2}) {
      const std::string& text = outcomes[static_cast<size_t>(r)].text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    }
  }
}

TEST(Faults, AStoppedRankIsOnlySlow) {
  TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 7);
  const RankTokens tokens = layer.tokens(16);
  const std::string want = run_rank(layer, tokens, Group::self(), 1, 1);
  const std::vector<test::Outcome> outcomes = test::run_shm(3, [&](const Group& group) {
    return run_rank(layer, tokens, group, 1, 200, [&](int call) {
      if (group.rank() != 1 || call != 50) return;
      const pid_t self = getpid();
      if (fork() == 0) {  // wakes its parent later
        usleep(1'500'000);
        kill(self, SIGCONT);
        _exit(0);
      }
      raise(SIGSTOP);
    });
  });
  for (const test::Outcome& outcome : outcomes) EXPECT_EQ(outcome.text, want);
}

TEST(Faults, ASilentRankIsATimeoutThatNamesTheLimit) {
  TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 8);
  RankTokens tokens = layer.tokens(4);
  std::vector<Status> statuses(2);
  test::on_local_ranks(2, [&](int rank, const Group& group) {
    BufferOptions options = test::options(1);
    options.deadline = std::chrono::milliseconds(400);
    auto buffer = SymmBuffer::create(group, layer.config(8), options);
    ASSERT_TRUE(buffer);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      return;
    }
    auto moe = MegaMoe::create(*buffer, layer.layer(2, rank, true));
    ASSERT_TRUE(moe);
    statuses[0] = (*moe)->run(layer.args(tokens, 4));
    statuses[1] = (*moe)->run(layer.args(tokens, 4));
  });
  EXPECT_EQ(statuses[0].code(), Code::kTimedOut) << statuses[0].message();
  EXPECT_NE(statuses[0].message().find("400 ms"), std::string::npos) << statuses[0].message();
  EXPECT_FALSE(statuses[1]) << "a broken buffer stays broken";
}

TEST(Faults, TheChildOfAForkComputesOnItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not support threads in the child of a process with threads";
#endif
  TestLayer layer({64, 32, 8, 2, "A16W16", "swiglu"}, 9);
  const RankTokens tokens = layer.tokens(16);
  const std::string want = run_rank(layer, tokens, Group::self(), 2, 1);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(64), test::options(2));
  auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
  RankTokens own = tokens;
  ASSERT_TRUE((*moe)->run(layer.args(own, 8)));
  const test::Outcome fresh =
      test::Child([&] { return run_rank(layer, tokens, Group::self(), 2, 1); }).finish(30);
  EXPECT_EQ(fresh.text, want);
  const test::Outcome inherited = test::Child([&] {
                                    RankTokens again = tokens;
                                    const Status status = (*moe)->run(layer.args(again, 8));
                                    return status.is_ok() ? hex(again.y) : "error: " + status.message();
                                  }).finish(30);
  EXPECT_TRUE(inherited.text == want || inherited.text.rfind("error: ", 0) == 0) << inherited.text;
  ASSERT_TRUE((*moe)->run(layer.args(own, 8)));
  EXPECT_EQ(hex(own.y), want);
}

}  // namespace
}  // namespace megamoe
