// Every parameter of the operator documents at and past the limits of every profile, as a table.
#include <gtest/gtest.h>

#include <string>

#include "limit_cases.h"
#include "moe/validate.h"

namespace megamoe {
namespace {

using test::LimitSetup;

TEST(Limits, Settings) {
  for (const test::ConfigCase& one : test::config_cases()) {
    BufferConfig config = test::smallest_config(one.profile);
    int64_t ranks = 2;
    one.change(config, ranks);
    EXPECT_EQ(mega_moe_ccl_buffer_size(ranks, config).status().message(), one.error) << one.title();
  }
}

TEST(Limits, Layers) {
  for (const test::LayerCase& one : test::layer_cases()) {
    LimitSetup setup(one.profile, one.scenario);
    one.change(setup);
    test::on_local_ranks(2, [&](int, const Group& group) {
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << one.title() << ": " << buffer.status().message();
      EXPECT_EQ(MegaMoe::create(*buffer, setup.l).status().message(), one.error)
          << one.title() << " of " << one.scenario;
    });
  }
}

// What a profile refuses of raw weights it refuses of packed ones.
TEST(Limits, PackedLayers) {
  int refused = 0;
  for (const test::LayerCase& one : test::layer_cases()) {
    LimitSetup setup(one.profile, one.scenario);
    one.change(setup);
    const std::string name = one.title() + " of " + one.scenario;
    if (!setup.pack()) continue;  // refused before there is a layer
    refused += !one.accepted();
    test::on_local_ranks(2, [&](int, const Group& group) {
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << name << ": " << buffer.status().message();
      EXPECT_EQ(MegaMoe::create(*buffer, setup.l).status().message(), one.error) << name;
    });
  }
  EXPECT_GE(refused, 60) << "packing must not hide what is to be refused";
}

TEST(Limits, Calls) {
  for (const test::CallCase& one : test::call_cases()) {
    LimitSetup ranks[] = {{one.profile, one.scenario}, {one.profile, one.scenario}};
    const std::string name = one.title() + " of " + one.scenario;
    for (LimitSetup& setup : ranks) one.change(setup, setup.a);
    if (one.accepted() && ranks[0].a.x.shape[0] > 8) {
      // Too many tokens to run in a test: the check alone.
      EXPECT_EQ(moe::check_call(ranks[0].a, ranks[0].c, ranks[0].local_experts()).message(), "") << name;
      continue;
    }
    const std::string expected = one.accepted() ? "" : std::string("rank 0: ") + one.error;
    test::on_local_ranks(2, [&](int rank, const Group& group) {
      LimitSetup& setup = ranks[rank];
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << name << ": " << buffer.status().message();
      const auto moe = MegaMoe::create(*buffer, setup.l);
      ASSERT_TRUE(moe) << name << ": " << moe.status().message();
      EXPECT_EQ((*moe)->run(setup.a).message(), expected) << name;
      EXPECT_TRUE(expected.empty() || setup.untouched()) << name;
    });
  }
}

TEST(Limits, RanksOfA2A3PassEquallyManyTokens) {
  for (const auto& [profile, scenario, error] :
       {std::tuple{"ascend_a2_a3", "A16W16",
                   "rank 1: x has 3 tokens: expected 2 as on rank 0 (profile ascend_a2_a3)"},
        std::tuple{"ascend_950", "A8W8-FP", ""}, std::tuple{"cpu", "A16W16", ""}}) {
    LimitSetup ranks[] = {{profile, scenario}, {profile, scenario}};
    ranks[1].tokens(3);
    test::on_local_ranks(2, [&](int rank, const Group& group) {
      LimitSetup& setup = ranks[rank];
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << buffer.status().message();
      const auto moe = MegaMoe::create(*buffer, setup.l);
      ASSERT_TRUE(moe) << moe.status().message();
      EXPECT_EQ((*moe)->run(setup.a).message(), error);
      setup.tokens(4);
      EXPECT_EQ((*moe)->run(setup.a).message(), "") << "the next legal call works";
    });
  }
}

}  // namespace
}  // namespace megamoe
