// What every transport must do: the same tests over all rows of the table.
#include "comm/session.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/call.h"
#include "comm/ranks.h"

namespace megamoe::test {
namespace {

using comm::Session;
using std::chrono::milliseconds;

struct Case {
  const char* transport;
  int size;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.transport << " x " << c.size;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const comm::TransportRow& row : comm::transport_table()) {
    for (int size : {1, 2, 4, 8}) {
      if (size <= row.max_ranks) cases.push_back({row.name, size});
    }
  }
  return cases;
}

class EveryTransport : public testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().size; }
  std::vector<Outcome> run(const Body& body) {
    return run_ranks(transport(GetParam().transport), size(), body);
  }
  void expect_all(const std::vector<Outcome>& outcomes, const std::string& text) {
    for (size_t r = 0; r < outcomes.size(); ++r) {
      EXPECT_EQ(outcomes[r].text, text) << "rank " << r;
      EXPECT_EQ(outcomes[r].signal, 0) << "rank " << r;
    }
  }
};

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

INSTANTIATE_TEST_SUITE_P(Table, EveryTransport, testing::ValuesIn(all_cases()), [](const auto& info) {
  return std::string(info.param.transport) + std::to_string(info.param.size);
});

}  // namespace
}  // namespace megamoe::test
