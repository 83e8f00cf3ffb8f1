// Every scenario at the sizes of a real layer, on every level, against the reference with its double sums.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/layer.h"

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

constexpr double kBound = 2e-3;

class Realistic : public testing::TestWithParam<test::ScenarioTraits> {};

TEST_P(Realistic, TwoRanksStayNearTheReference) {
  constexpr int kRanks = 2;
  constexpr int64_t kMostTokens = 12;
  TestLayer layer({2048, 768, 8, 4, GetParam().name, "swiglu"}, 71);
  std::vector<RankTokens> ranks{layer.tokens(kMostTokens), layer.tokens(5)};
  const std::vector<RankTokens> want = layer.reference(ranks, kMostTokens);
  for (const Isa isa : test::runnable_levels()) {
    test::on_local_ranks(kRanks, [&](int rank, const Group& group) {
      RankTokens& tokens = ranks[static_cast<size_t>(rank)];
      layer.poison(tokens);
      auto buffer = SymmBuffer::create(group, layer.config(kMostTokens), test::options(1, isa));
      ASSERT_TRUE(buffer) << buffer.status().message();
      auto op = MegaMoe::create(*buffer, layer.layer(kRanks, rank, /*packed=*/true));
      ASSERT_TRUE(op) << op.status().message();
      const Status status = (*op)->run(layer.args(tokens, layer.local_experts(kRanks, rank)));
      ASSERT_TRUE(status) << status.message();
    });
    for (size_t r = 0; r < ranks.size(); ++r) {
      const double error = test::relative_error(ranks[r].y, want[r].y);
      EXPECT_LT(error, kBound) << isa_name(isa);
      RecordProperty(std::string(isa_name(isa)) + "_rank" + std::to_string(r), std::to_string(error));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Realistic, testing::ValuesIn(test::kScenarioTraits),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megamoe
