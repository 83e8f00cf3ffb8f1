// Calls on every transport: verdicts, ends and failures are the same on all ranks.
#include "comm/session.h"

#include <limits>
#include <thread>

#include "base/interrupt.h"
#include "comm/every_transport.h"
#include "comm/segment_header.h"

namespace megamoe::test {
namespace {

using comm::Session;
using comm::Stage;
using std::chrono::milliseconds;

TEST_P(EveryTransport, ManyCallsWithRandomDelays) {
  const int calls = size() > 4 ? 500 : 2000;
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    std::mt19937_64 random(static_cast<uint64_t>(group.rank()));
    Caller caller(**session, 7, [&](uint64_t, Point) {
      const uint64_t draw = random() % 1000;
      if (draw == 0) std::this_thread::sleep_for(milliseconds(3));
      if (draw > 900) std::this_thread::yield();
    });
    for (int i = 0; i < calls; ++i) {
      const Status status = caller.call();
      if (!status.is_ok()) return "call " + std::to_string(i) + ": " + status.message();
    }
    return "ok " + std::to_string((*session)->current_call());
  });
  expect_all(outcomes, "ok " + std::to_string(calls));
}

TEST_P(EveryTransport, BadArgumentIsTheSameErrorEverywhereAndTheNextCallWorks) {
  const int bad_rank = size() - 1;
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Caller caller(**session);
    const Status bad(Code::kInvalidType, "topk_ids[3][1] = 64: expected a value in [0, 64)");
    std::string text;
    for (int i = 0; i < 6; ++i) {
      // Every second call: a bad argument on the last rank, then also on rank 0.
      const bool mine = i % 2 == 1 && (group.rank() == bad_rank || (i == 3 && group.rank() == 0));
      text += text_of(caller.call(mine ? bad : Status::ok())) + "\n";
    }
    return text;
  });
  const std::string error =
      "invalid type: " + (size() == 1 ? std::string() : "rank " + std::to_string(bad_rank) + ": ") +
      "topk_ids[3][1] = 64: expected a value in [0, 64)\n";
  std::string both = error;
  if (size() > 1) both.replace(both.find("rank ") + 5, 1, "0");
  expect_all(outcomes, "ok\n" + error + "ok\n" + both + "ok\n" + error);
}

TEST_P(EveryTransport, TooManyRowsIsTheSameErrorEverywhereAndTheNextCallWorks) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Caller caller(**session);
    const int last = static_cast<int>(caller.layout().input.experts) - 1;
    const bool first = group.rank() == 0;
    std::string text = text_of(caller.call_to(last, 8)) + "\n";
    text += text_of(caller.call_to(last, first ? 7 : 8)) + "\n";  // just fits
    return text + text_of(caller.call()) + "\n";
  });
  const int rows = size() * 8;
  expect_all(outcomes, "capacity exceeded: max_recv_token_num = " + std::to_string(rows - 1) +
                           ": expected room for the rows that rank " + std::to_string(size() - 1) +
                           " receives in this call, needed " + std::to_string(rows) + ", available " +
                           std::to_string(rows - 1) + "\nok\nok\n");
}

TEST_P(EveryTransport, LongMessagesAreCutTheSameWayEverywhere) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    std::string wide(447, 'a');
    for (int i = 0; i < 100; ++i) wide += "\u00e9";
    const bool mine = group.rank() == 0;
    return Caller(**session).call(mine ? Status(Code::kInvalidArgument, wide) : Status::ok()).message();
  });
  expect_all(outcomes, (size() == 1 ? "" : "rank 0: ") + std::string(447, 'a'));
}

TEST_P(EveryTransport, CloseIsIdempotentAndEndsCalls) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Caller caller(**session);
    const Status first = caller.call();
    (*session)->close();
    (*session)->close();
    const Status second = caller.call();
    const Status wait = (*session)->wait_until([] { return true; }, Stage::kBlocks);
    return text_of(first) + "\n" + text_of(second) + "\n" + code_name(wait.code());
  });
  expect_all(outcomes, "ok\nclosed: buffer: was destroyed, expected a live buffer\nclosed");
}

TEST_P(EveryTransport, OneCallAtATime) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    const auto first = (*session)->begin_call();
    const auto second = (*session)->begin_call();
    (*session)->end_call();
    const auto third = (*session)->begin_call();
    (*session)->end_call();
    return std::to_string(*first) + " " + second.status().message() + " " + std::to_string(*third);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.text, "1 buffer: a call is still running on it, expected one call at a time 2");
  }
}

TEST_P(EveryTransport, SeveralBuffersOfOneGroupLiveTogether) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Caller> callers;
    for (uint64_t i = 0; i < 3; ++i) {
      auto session = open_small(group);
      if (!session.is_ok()) return session.status().message();
      sessions.push_back(std::move(*session));
      callers.emplace_back(*sessions.back(), i);
    }
    for (int i = 0; i < 50; ++i) {
      for (Caller& caller : callers) {
        const Status status = caller.call();
        if (!status.is_ok()) return status.message();
      }
    }
    return "ok";
  });
  expect_all(outcomes, "ok");
}

TEST_P(EveryTransport, ManyThreadsWaitAtOnce) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Session& s = **session;
    const size_t offset = Caller(s).layout().arrived;
    if (!s.begin_call().is_ok()) return "begin";
    constexpr uint32_t kRounds = 100;
    // Each round: every thread of every rank waits until all ranks have added to its rank's counter.
    std::atomic<int> bad{0};
    std::vector<std::thread> threads;
    const auto& word = *reinterpret_cast<std::atomic<uint32_t>*>(s.segment(s.rank()) + offset);
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (uint32_t round = 1; round <= kRounds; ++round) {
          if (t == 0) {
            for (int r = 0; r < s.size(); ++r) s.add(r, offset, 1);
          }
          const uint32_t wanted = round * static_cast<uint32_t>(s.size());
          const Status status =
              s.wait_until([&] { return word.load(std::memory_order_acquire) >= wanted; }, Stage::kBlocks);
          if (!status.is_ok()) ++bad;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    s.end_call();
    return bad == 0 ? "ok" : "bad";
  });
  expect_all(outcomes, "ok");
}

TEST_P(EveryTransportWithPeers, RankThatLeftEarlyEndsTheNextCallOfTheOthers) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    // All but rank 1 are slow at the end of call 2, when rank 1 is long gone.
    Caller caller(**session, 1, [&](uint64_t call, Point point) {
      if (call == 2 && point == Point::kBeforeCombine && group.rank() != 1) {
        std::this_thread::sleep_for(milliseconds(200));
      }
    });
    std::string text = text_of(caller.call()) + ", " + text_of(caller.call());
    if (group.rank() == 1) return text;
    const Status third = caller.call();
    const Status fourth = caller.call();
    return text + ", " + code_name(third.code()) + ", " +
           (third.message().find("rank 1 left: its buffer was destroyed after call 2") == 0 ? "named" : "") +
           (fourth.message() == third.message() ? ", stays" : fourth.message());
  });
  for (int r = 0; r < size(); ++r) {
    EXPECT_EQ(outcomes[r].text, r == 1 ? "ok, ok" : "ok, ok, peer failed, named, stays") << "rank " << r;
  }
}

TEST_P(EveryTransportWithPeers, FirstReasonReachesAllAndStays) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Session& s = **session;
    Status status = s.begin_call().status();  // an error when rank 1 was quick
    if (!status.is_ok()) {
      EXPECT_NE(group.rank(), 1);
    } else if (group.rank() == 1) {
      status = s.fail(Code::kSystem, 1, Stage::kBlocks, "rank 1: the disk is on fire");
    } else {
      status = s.wait_until([] { return false; }, Stage::kReturn);
    }
    const Status again = s.fail(Code::kCapacity, 0, Stage::kNone, "a later reason");
    const Status next = s.begin_call().status();
    s.close();
    return text_of(status) + (again.message() == status.message() && next.message() == status.message() &&
                                      s.broken().message() == status.message()
                                  ? ", stays"
                                  : ", changed");
  });
  expect_all(outcomes, "system error: rank 1: the disk is on fire, stays");
}

TEST_P(EveryTransportWithPeers, WorkOfOwnThreadsCountsNotAgainstTheDeadline) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group, milliseconds(500));
    if (!session.is_ok()) return session.status().message();
    Session& s = **session;
    if (!s.begin_call()) return "no call";
    const auto start = std::chrono::steady_clock::now();
    const auto later = [&] { return std::chrono::steady_clock::now() - start > milliseconds(1500); };
    const Status working = s.wait_in_team(
        later, [] { return false; }, Stage::kBlocks);
    // Nobody works: one rank gives up, and all hear it.
    const Status idle = s.wait_in_team([] { return false; }, [] { return true; }, Stage::kBlocks);
    return text_of(working) + ", then " + code_name(idle.code());
  });
  expect_all(outcomes, "ok, then timed out");
}

TEST_P(EveryTransportWithPeers, InterruptedWaitIsTheSameErrorOnAllRanks) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    Session& s = **session;
    int most = group.rank() == 1 ? 3 : std::numeric_limits<int>::max();  // questions
    const base::InterruptScope scope([](void* left) { return --*static_cast<int*>(left) == 0; }, &most);
    Status status = s.begin_call().status();  // an error when rank 1 was quick
    if (status.is_ok()) status = s.wait_until([] { return false; }, Stage::kReturn);
    return text_of(status) + ", then " + text_of(s.begin_call().status());
  });
  const std::string error = "peer failed: rank 1 was interrupted in the return of rows of call 1";
  expect_all(outcomes, error + ", then " + error);
}

TEST_P(EveryTransportWithPeers, WaitPastTheDeadlineNamesStageRanksAndLimit) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    auto session = open_small(group, milliseconds(700));
    if (!session.is_ok()) return session.status().message();
    if (group.rank() == 1) {
      // Alive, but takes no part in call 1 until every other rank has given up.
      for (int r = 0; r < group.size(); ++r) {
        const auto& peer = *reinterpret_cast<comm::SegmentHeader*>((*session)->segment(r));
        while (r != 1 && peer.state.load() != comm::RankState::kFailed) {
          std::this_thread::sleep_for(milliseconds(1));
        }
      }
      return text_of((*session)->begin_call().status());
    }
    return text_of(Caller(**session).call());
  });
  for (int r = 0; r < size(); ++r) {
    for (const char* part : {"timed out: rank ", "waited longer than the limit of 700 ms in the ",
                             "exchange of records of call 1 for rank 1"}) {
      EXPECT_NE(outcomes[r].text.find(part), std::string::npos) << r << ": " << outcomes[r].text;
    }
  }
}

const auto name_of = [](const auto& info) {
  return std::string(info.param.transport) + std::to_string(info.param.size);
};
INSTANTIATE_TEST_SUITE_P(Table, EveryTransport, testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Table, EveryTransportWithPeers, testing::ValuesIn(cases_with_peers()), name_of);

}  // namespace
}  // namespace megamoe::test
