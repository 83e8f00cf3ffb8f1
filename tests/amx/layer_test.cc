// Which kernels the layers of this program are multiplied by, so that the tests beside this one mean
// something.
#include <gtest/gtest.h>

#include "support/runs.h"

namespace megamoe {
namespace {

TEST(AmxLayer, EveryScenarioIsAmongTheTestedAndRunsTheKernelsOfTheLevel) {
  const std::vector<Isa> levels = test::runnable_levels();
  if (std::find(levels.begin(), levels.end(), Isa::kAvx512Bf16) == levels.end())
    GTEST_SKIP() << "this machine lacks the rest of the level";
  ASSERT_EQ(levels.back(), Isa::kAmx);
  for (const char* scenario : test::scenario_names()) {
    const test::TestLayer layer({70, 38, 4, 2, scenario, "swiglu"}, 1);
    auto buffer = SymmBuffer::create(Group::self(), layer.config(4), test::options(1, Isa::kAmx));
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
    ASSERT_TRUE(moe) << moe.status().message();
    for (const std::string& kernel : (*moe)->kernels()) {
      EXPECT_NE(kernel.find("amx"), std::string::npos) << scenario << " " << kernel;
    }
    EXPECT_EQ((*moe)->kernels().size(), 2u);
  }
}

}  // namespace
}  // namespace megamoe
