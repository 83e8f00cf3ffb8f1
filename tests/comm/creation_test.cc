// Creation of a session on every transport: what ranks must agree on, what is missing, what is left behind.
#include <signal.h>

#include <thread>

#include "base/interrupt.h"
#include "comm/every_transport.h"
#include "comm/segment_header.h"
#include "comm/session.h"

namespace megamoe::test {
namespace {

using comm::Session;
using std::chrono::milliseconds;

TEST_P(EveryTransport, CreationAndDestructionLeaveNothingBehind) {
  // Ranks that are threads share their descriptors: counted once, when they are done.
  const bool threads = transport(GetParam().transport).one_process;
  const int before = open_fds();
  const auto outcomes = run([&](const Group& group) -> std::string {
    int fds = 0;
    for (int i = 0; i < 200; ++i) {
      auto session = open_small(group);
      if (!session.is_ok()) return "cycle " + std::to_string(i) + ": " + session.status().message();
      if (i % 50 == 0) {
        const Status status = Caller(**session).call();
        if (!status.is_ok()) return status.message();
      }
      session = Status(Code::kClosed, "");
      if (mapped_segments() != 0) return "cycle " + std::to_string(i) + ": a segment is still mapped";
      if (i == 0 && !threads) fds = open_fds();
    }
    return threads || open_fds() == fds ? "ok" : "descriptors left";
  });
  expect_all(outcomes, "ok");
  EXPECT_EQ(open_fds(), before);
}

TEST_P(EveryTransport, MoreMemoryThanTheHostHasIsAnError) {
  const auto outcomes = run([&](const Group& group) {
    const Status status = Session::open(group, size_t{1} << 46, {}, {}).status();
    return text_of(status);
  });
  expect_same(outcomes, {"out of memory: ", "needed " + std::to_string((size_t{1} << 46) * size()) + " bytes",
                         "available "});
  const auto overflow = run(
      [&](const Group& group) { return text_of(Session::open(group, ~size_t{0} - 8191, {}, {}).status()); });
  expect_same(overflow, {"out of memory: "});
}

TEST_P(EveryTransport, TooSmallSegmentIsAnError) {
  const auto outcomes =
      run([&](const Group& group) { return text_of(Session::open(group, 4095, {}, {}).status()); });
  expect_all(outcomes, "invalid argument: segment_bytes = 4095: expected at least 4096");
}

TEST_P(EveryTransportWithPeers, DifferentSettingsAreTheSameErrorEverywhere) {
  const comm::Settings settings = {
      {"max_tokens", "64"}, {"num_experts", "8"}, {"topk", "2"}, {"dtype", "bf16"}};
  for (size_t field = 0; field < settings.size(); ++field) {
    const auto outcomes = run([&](const Group& group) {
      comm::Settings own = settings;
      if (group.rank() == 1) own[field].second = "other";
      return text_of(open_small(group, milliseconds(60000), own).status());
    });
    std::string rest = size() == 2 ? "rank 0" : "ranks 0, 2, 3";
    expect_all(outcomes, "settings differ: " + settings[field].first + " = " + settings[field].second +
                             " on " + rest + "; other on rank 1: expected the same value on every rank");
  }
}

TEST_P(EveryTransportWithPeers, DifferentSegmentBytesAreTheSameErrorEverywhere) {
  const auto outcomes = run([&](const Group& group) {
    return text_of(Session::open(group, group.rank() == 0 ? 8192 : 4096, {}, {}).status());
  });
  expect_same(outcomes, {"settings differ: segment bytes = 8192 on rank 0; 4096 on rank"});
}

TEST_P(EveryTransportWithPeers, ErrorAtCreationIsNotTheEndOfTheGroup) {
  const auto outcomes = run([&](const Group& group) -> std::string {
    const Status first =
        open_small(group, milliseconds(60000), {{"topk", std::to_string(group.rank())}}).status();
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    return std::string(code_name(first.code())) + ", then " + text_of(Caller(**session).call());
  });
  expect_all(outcomes, "settings differ, then ok");
}

TEST_P(EveryTransport, ARankThatRefusesIsTheSameErrorEverywhereAtOnce) {
  const int refusing = size() - 1;
  const auto outcomes = run([&](const Group& group) -> std::string {
    const Status why(Code::kInvalidType, "topk has type text: expected an integer");
    const Status first =
        group.rank() == refusing ? Session::refuse(group, why, {}) : open_small(group).status();
    auto session = open_small(group);
    if (!session.is_ok()) return session.status().message();
    return text_of(first) + ", then " + text_of(Caller(**session).call());
  });
  expect_all(outcomes, "invalid type: " + (size() == 1 ? "" : "rank " + std::to_string(refusing) + ": ") +
                           "topk has type text: expected an integer, then ok");
}

TEST_P(EveryTransportWithPeers, ARankThatRefusesAloneKeepsItsReason) {
  auto outcomes = run([&](const Group& group) -> std::string {
    if (group.rank() != 1) return {};
    return text_of(Session::refuse(group, Status(Code::kInvalidArgument, "a = 1: expected 2"),
                                   {.deadline = milliseconds(500)}));
  });
  EXPECT_EQ(outcomes[1].text, "invalid argument: a = 1: expected 2");
}

TEST_P(EveryTransportWithPeers, MissingRankIsNamedByAll) {
  const int missing = size() - 1;
  auto outcomes = run([&](const Group& group) -> std::string {
    if (group.rank() == missing) return {};
    return text_of(open_small(group, milliseconds(1000)).status());
  });
  outcomes.pop_back();
  expect_same(outcomes, {"timed out: rank " + std::to_string(missing) + " of ", "did not come", "1000 ms"});
}

// A job that is stopped as a whole while its ranks meet goes on where it was.
TEST(Creation, TimeInWhichTheProcessIsStoppedCountsLittle) {
  Child job([] {
    auto groups = Group::local(2).value();
    std::string late;
    std::thread other([&] {
      // Comes once it has been stopped itself.
      for (auto last = std::chrono::steady_clock::now();;) {
        std::this_thread::sleep_for(milliseconds(10));
        const auto now = std::chrono::steady_clock::now();
        if (now - last > std::chrono::seconds(3)) break;
        last = now;
      }
      std::this_thread::sleep_for(milliseconds(200));
      late = text_of(open_small(groups[1], std::chrono::seconds(60)).status());
    });
    const std::string waiting = text_of(open_small(groups[0], std::chrono::seconds(4)).status());
    other.join();
    return waiting + ", " + late;
  });
  std::this_thread::sleep_for(milliseconds(500));
  kill(job.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(5));
  kill(job.pid(), SIGCONT);
  EXPECT_EQ(job.finish().text, "ok, ok");
}

TEST_P(EveryTransportWithPeers, InterruptedCreationEndsBeforeItsDeadline) {
  for (const int interrupted : {0, size() - 1}) {
    const auto outcomes = run([&](const Group& group) -> std::string {
      if (group.rank() == size() - 1 - interrupted) return {};
      if (group.rank() != interrupted) return text_of(open_small(group, milliseconds(2000)).status());
      int most = 3;  // questions
      const base::InterruptScope scope([](void* left) { return --*static_cast<int*>(left) == 0; }, &most);
      return text_of(open_small(group, std::chrono::hours(1)).status());
    });
    const std::string& text = outcomes[static_cast<size_t>(interrupted)].text;
    EXPECT_EQ(text.find("peer failed: rank"), 0u) << text;
    EXPECT_NE(
        text.find("to create the buffer before rank " + std::to_string(interrupted) + " was interrupted"),
        std::string::npos)
        << text;
  }
}

TEST_P(EveryTransportWithPeers, MissingRankZeroIsNamedByAll) {
  auto outcomes = run([&](const Group& group) -> std::string {
    if (group.rank() == 0) return {};
    return text_of(open_small(group, milliseconds(500)).status());
  });
  outcomes.erase(outcomes.begin());
  expect_same(outcomes, {"timed out: rank 0 of ", "did not come", "500 ms"});
}

}  // namespace
}  // namespace megamoe::test
