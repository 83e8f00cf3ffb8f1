// More slots than float32 counts exactly.
#include <gtest/gtest.h>

#include "megamoe/routing.h"

namespace megamoe::route {
namespace {

TEST(LargeSort, MoreThan16777216SlotsOfTwoExperts) {
  constexpr int64_t kTokens = (int64_t{1} << 24) + 3;
  std::vector<int8_t> x(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) x[t] = static_cast<int8_t>(t % 127);
  std::vector<int32_t> ids(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) ids[t] = static_cast<int32_t>(t % 3 == 0);
  MoeInitRoutingArgs args;
  args.x = TensorView(x.data(), DType::kInt8, {kTokens, 1});
  args.expert_idx = TensorView(ids.data(), DType::kInt32, {kTokens, 1});
  args.expert_num = 2;
  args.expert_tokens_num_flag = true;
  args.expert_tokens_num_type = 1;
  auto outputs = moe_init_routing_v3_outputs(args);
  ASSERT_TRUE(outputs);
  std::vector<int8_t> rows(kTokens);
  std::vector<int32_t> index(kTokens);
  int64_t counts[2] = {};
  outputs->expanded_x.data = rows.data();
  outputs->expanded_row_idx.data = index.data();
  outputs->expert_tokens_count_or_cumsum.data = counts;
  ASSERT_TRUE(moe_init_routing_v3(args, *outputs));
  const int64_t ones = (kTokens + 2) / 3;
  EXPECT_EQ(counts[0], kTokens - ones);
  EXPECT_EQ(counts[1], ones);
  int64_t next[2] = {0, kTokens - ones};
  for (int64_t t = 0; t < kTokens; ++t) {
    ASSERT_EQ(index[t], next[ids[t]]++) << t;
    ASSERT_EQ(rows[index[t]], x[t]) << t;
  }
}

}  // namespace
}  // namespace megamoe::route
