// Tests over all rows of the transport table, with several numbers of ranks.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/ranks.h"
#include "comm/transport_table.h"

namespace megamoe::test {

struct Case {
  const char* transport;
  int size;
};
inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.transport << " x " << c.size;
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const comm::TransportRow& row : comm::transport_table()) {
    for (int size : {1, 2, 4, 8}) {
      if (size <= row.max_ranks) cases.push_back({row.name, size});
    }
  }
  return cases;
}

inline std::vector<Case> cases_with_peers() {
  std::vector<Case> cases;
  for (const Case& c : all_cases()) {
    if (c.size == 2 || c.size == 4) cases.push_back(c);
  }
  return cases;
}

inline std::string text_of(const Status& status) {
  return status.is_ok() ? "ok" : std::string(code_name(status.code())) + ": " + status.message();
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
  /// All ranks say the same, and it holds each part.
  void expect_same(const std::vector<Outcome>& outcomes, const std::vector<std::string>& parts) {
    expect_all(outcomes, outcomes[0].text);
    for (const std::string& part : parts) {
      EXPECT_NE(outcomes[0].text.find(part), std::string::npos) << part << " in: " << outcomes[0].text;
    }
  }
};
class EveryTransportWithPeers : public EveryTransport {};

}  // namespace megamoe::test
