// Processes that die, stop or fork while others wait for them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "comm/call.h"
#include "comm/ranks.h"

namespace megamoe::test {
namespace {

using comm::Session;
using std::chrono::milliseconds;

struct Death {
  Point point;
  const char* name;
};
class KilledAt : public testing::TestWithParam<std::tuple<Death, int>> {};

TEST_P(KilledAt, SurvivorsNameTheRankAndEnd) {
  const auto [death, size] = GetParam();
  const int victim = size - 1;
  const auto outcomes = run_shm(size, [&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    bool armed = true;
    Caller caller(**session, 3, [&](uint64_t call, Point point) {
      if (armed && call == 3 && point == death.point && group.rank() == victim) raise(SIGKILL);
    });
    Status status;
    while (status.is_ok() && (*session)->current_call() < 100) status = caller.call();
    const std::string call = std::to_string((*session)->current_call());
    return "call " + call + " " + code_name(status.code()) + ": " + status.message();
  });
  EXPECT_EQ(outcomes[victim].signal, SIGKILL);
  for (int r = 0; r < victim; ++r) {
    const std::string& text = outcomes[r].text;
    EXPECT_EQ(outcomes[r].signal, 0);
    // A survivor that needed nothing more from the dead rank ends call 3 well and fails in call 4.
    EXPECT_TRUE(text.find("call 3 ") == 0 || text.find("call 4 ") == 0) << text;
    EXPECT_NE(text.find("peer failed: rank " + std::to_string(victim) + " died: its process ended"),
              std::string::npos)
        << text;
    const bool stage = text.find("in the exchange of records") != std::string::npos ||
                       text.find("in the arrival of rows") != std::string::npos ||
                       text.find("in the return of rows") != std::string::npos;
    EXPECT_TRUE(stage) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(EachPoint, KilledAt,
                         testing::Combine(testing::Values(Death{Point::kBeforeRecords, "BeforeRecords"},
                                                          Death{Point::kBeforeRows, "BeforeRows"},
                                                          Death{Point::kBetweenRows, "BetweenRows"},
                                                          Death{Point::kBeforeReturn, "BeforeReturn"},
                                                          Death{Point::kBeforeCombine, "BeforeCombine"},
                                                          Death{Point::kBeforeEnd, "BeforeEnd"}),
                                          testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param));
                         });

TEST(Failure, ExitWithoutDestroyIsADeath) {
  const auto outcomes = run_shm(2, [](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Caller caller(**session);
    Status status = caller.call();
    if (group.rank() == 1) _exit(0);
    while (status.is_ok()) status = caller.call();
    return status.message();
  });
  EXPECT_EQ(outcomes[0].text.find("rank 1 died"), 0u) << outcomes[0].text;
}

TEST(Failure, FirstDeathIsNotBlamedOnSurvivorsThatExit) {
  // Ranks 0 and 2 end their processes as soon as they have the error; rank 1 looks late.
  for (int round = 0; round < 5; ++round) {
    const auto outcomes = run_shm(4, [](const Group& group) -> std::string {
      auto session = open_small(group);
      if (!session.is_ok()) return session.status().message();
      Caller caller(**session, 1, [&](uint64_t call, Point point) {
        if (call != 2 || point != Point::kBeforeRows) return;
        if (group.rank() == 3) raise(SIGKILL);
        if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(400));
      });
      Status status;
      while (status.is_ok()) status = caller.call();
      return status.message();
    });
    for (int r = 0; r < 3; ++r) EXPECT_EQ(outcomes[r].text.find("rank 3 died"), 0u) << outcomes[r].text;
  }
}

TEST(Failure, StoppedRankIsOnlySlow) {
  const std::string key = fresh_key();
  std::vector<Child> children;
  for (int r = 0; r < 2; ++r) {
    children.emplace_back([&, r]() -> std::string {
      auto session = open_small(*Group::shm(key, r, 2));
      if (!session.is_ok()) return session.status().message();
      Caller caller(**session, 1, [&](uint64_t call, Point point) {
        if (r == 1 && call == 5 && point == Point::kBeforeReturn) raise(SIGSTOP);
      });
      for (int i = 0; i < 20; ++i) {
        const Status status = caller.call();
        if (!status.is_ok()) return status.message();
      }
      return "ok";
    });
  }
  int status = 0;
  // Two local experts: the point is passed twice in a call.
  for (int stop = 0; stop < 2; ++stop) {
    ASSERT_EQ(waitpid(children[1].pid(), &status, WUNTRACED), children[1].pid());
    ASSERT_TRUE(WIFSTOPPED(status));
    if (stop == 0) std::this_thread::sleep_for(milliseconds(2000));
    kill(children[1].pid(), SIGCONT);
  }
  EXPECT_EQ(children[0].finish().text, "ok");
  EXPECT_EQ(children[1].finish().text, "ok");
}

TEST(Failure, JobStoppedForLongerThanTheDeadlineGoesOn) {
  const std::string key = fresh_key();
  std::vector<Child> children;
  for (int r = 0; r < 2; ++r) {
    children.emplace_back([&, r]() -> std::string {
      auto session = open_small(*Group::shm(key, r, 2), milliseconds(1500));
      if (!session.is_ok()) return session.status().message();
      Caller caller(**session, 1, [&](uint64_t call, Point point) {
        // Rank 1 stops while rank 0 waits for it; the test then stops rank 0 too.
        if (r == 1 && call == 2 && point == Point::kBeforeCombine) raise(SIGSTOP);
      });
      for (int i = 0; i < 20; ++i) {
        const Status status = caller.call();
        if (!status.is_ok()) return status.message();
      }
      return "ok";
    });
  }
  int status = 0;
  ASSERT_EQ(waitpid(children[1].pid(), &status, WUNTRACED), children[1].pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  kill(children[0].pid(), SIGSTOP);
  ASSERT_EQ(waitpid(children[0].pid(), &status, WUNTRACED), children[0].pid());
  std::this_thread::sleep_for(milliseconds(2500));
  kill(children[0].pid(), SIGCONT);
  kill(children[1].pid(), SIGCONT);
  EXPECT_EQ(children[0].finish().text, "ok");
  EXPECT_EQ(children[1].finish().text, "ok");
}

TEST(Failure, ForkedChildDoesNotDisturbItsParent) {
  const auto outcomes = run_shm(2, [](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Caller caller(**session);
    Status status = caller.call();
    for (int i = 0; i < 3; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        const Status inherited = caller.call();
        (void)(*session)->fail(Code::kSystem, group.rank(), comm::Stage::kBlocks, "from the child");
        (*session)->end_call();
        if (i == 1) (*session)->close();
        session = Status(Code::kClosed, "");  // destroys
        _exit(inherited.code() == Code::kClosed ? 0 : 1);
      }
      int end = 0;
      waitpid(child, &end, 0);
      if (end != 0) return "the child could make a call";
      for (int j = 0; j < 10 && status.is_ok(); ++j) status = caller.call();
    }
    return status.is_ok() ? "ok" : status.message();
  });
  EXPECT_EQ(outcomes[0].text, "ok");
  EXPECT_EQ(outcomes[1].text, "ok");
}

TEST(Failure, LivingForkOfADeadRankDoesNotHideTheDeath) {
  const auto outcomes = run_shm(2, [](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Caller caller(**session);
    Status status = caller.call();
    if (group.rank() == 1) {
      if (fork() == 0) {
        std::this_thread::sleep_for(milliseconds(3000));
        _exit(0);
      }
      raise(SIGKILL);
    }
    while (status.is_ok()) status = caller.call();
    return status.message();
  });
  EXPECT_EQ(outcomes[0].text.find("rank 1 died"), 0u) << outcomes[0].text;
}

}  // namespace
}  // namespace megamoe::test
