// moe_init_routing_v3 against the reference, and inputs that other software got wrong.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "megamoe/reference.h"
#include "megamoe/routing.h"
#include "route/tensors.h"

namespace megamoe::route {
namespace {

/// The outputs of one call on poisoned memory.
struct Result4 {
  MoeInitRoutingOutputs tensors;
  std::vector<Output> memory;  ///< x, row index, counts, scale

  explicit Result4(const MoeInitRoutingArgs& args) {
    auto outputs = moe_init_routing_v3_outputs(args);
    EXPECT_TRUE(outputs) << outputs.status().message();
    if (outputs) tensors = *outputs;
    memory.emplace_back(tensors.expanded_x);
    memory.emplace_back(tensors.expanded_row_idx);
    memory.emplace_back(tensors.expert_tokens_count_or_cumsum);
    memory.emplace_back(tensors.expanded_scale);
  }
  std::vector<int32_t> row_idx() const { return memory[1].values<int32_t>(); }
  std::vector<int64_t> counts() const { return memory[2].values<int64_t>(); }
};

void compare_with_reference(const MoeInitRoutingArgs& args, const RoutingOptions& options) {
  Result4 got(args), want(args);
  const Status status = moe_init_routing_v3(args, got.tensors, options);
  ASSERT_TRUE(status) << status.message();
  const Status reference = reference::moe_init_routing_v3(args, want.tensors);
  ASSERT_TRUE(reference) << reference.message();
  const char* const names[] = {"expanded_x", "expanded_row_idx", "counts", "expanded_scale"};
  for (size_t i = 0; i < got.memory.size(); ++i) expect_same(got.memory[i], want.memory[i], names[i]);
}

MoeInitRoutingArgs plain(const Input& x, const Input& ids, int64_t experts) {
  MoeInitRoutingArgs args;
  args.x = x;
  args.expert_idx = ids;
  args.expert_num = experts;
  args.expert_tokens_num_flag = true;
  args.expert_tokens_num_type = 1;
  return args;
}

TEST(InitRouting, CopiesLikeTheReference) {
  std::mt19937 random(1);
  for (int64_t tokens : {0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025}) {
    for (int64_t experts : {1, 2, 64, 65, 256, 70001}) {  // the last ones are far more than slots
      const int64_t topk = 1 + static_cast<int64_t>(random() % 3);
      const bool wide = random() % 2 != 0;
      const DType type = random() % 2 != 0 ? DType::kBFloat16 : DType::kFloat32;
      const Input x = random_rows(random, type, tokens, 5, wide);
      const Input ids =
          random_ids(random, wide ? DType::kInt64 : DType::kInt32, {tokens, topk}, -1, experts - 1, wide);
      MoeInitRoutingArgs args = plain(x, ids, experts);
      const Input scale = Input(DType::kFloat32, {tokens}, wide).fill([](int64_t t, int64_t) { return t; });
      if (random() % 2 != 0) args.scale = scale;
      args.row_idx_type = static_cast<int64_t>(random() % 2);
      args.expert_tokens_num_type = static_cast<int64_t>(random() % 3);
      if (random() % 2 != 0) args.active_expert_range = {experts / 4, experts / 4 + (experts + 1) / 2};
      if (random() % 3 == 0) args.active_num = static_cast<int64_t>(random() % 40);
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts");
      compare_with_reference(args, {.threads = 1 + static_cast<int>(random() % 3), .isa = std::nullopt});
    }
  }
}

TEST(InitRouting, EveryModeOnEveryLevel) {
  std::mt19937 random(2);
  for (int64_t mode = -1; mode <= 17; ++mode) {
    if (mode == 10) continue;
    for (int round = 0; round < 6; ++round) {
      const bool wide = round % 2 != 0;
      const DType halves[] = {DType::kBFloat16, DType::kFloat16};
      const DType floats[] = {DType::kBFloat16, DType::kFloat32};
      const DType type = mode == 13 ? floats[round % 2] : halves[round / 2 % 2];
      const bool even = mode == 9 || mode == 13;
      const int64_t hidden[] = {2, 64, 130, 257, 300, 33};
      const int64_t columns = even ? hidden[round] / 2 * 2 : hidden[round];
      const Input x = random_rows(random, type, 21, columns, wide);
      const Input ids = random_ids(random, DType::kInt32, {21, 3}, -1, 7, wide);
      MoeInitRoutingArgs args = plain(x, ids, 8);
      args.quant_mode = mode;
      args.active_expert_range = {1, 7};
      if (round % 3 == 1) args.active_num = 17;
      if (round == 5 && (mode == 2 || mode == 3)) args.mx_scale = "floor";
      const int64_t smooth_rows = mode == 13 || round % 2 == 0 ? 1 : 6;
      Input scale = mode == 0 || mode == 7 ? Input(DType::kFloat32, {1})
                                           : Input(DType::kFloat32, {smooth_rows, columns}, wide);
      scale.fill([&](int64_t r, int64_t c) { return 0.5 + static_cast<double>((r * 7 + c) % 5); });
      const Input shift = Input(DType::kFloat32, {1}).fill([](int64_t, int64_t) { return -3.5; });
      if (mode == 0 || mode == 7 || ((mode == 1 || mode == 13) && round > 1)) args.scale = scale;
      if (mode == 0) args.offset = shift;
      SCOPED_TRACE(testing::Message() << "mode " << mode << ", round " << round);
      for (Isa isa : runnable_levels()) compare_with_reference(args, {.threads = 2, .isa = isa});
    }
  }
}

TEST(InitRouting, DropPadLikeTheReference) {
  std::mt19937 random(3);
  for (int64_t mode : {-1, 0, 1}) {
    for (int64_t capacity : {1, 2, 9}) {
      const Input x = random_rows(random, DType::kBFloat16, 40, 24);
      const Input ids = random_ids(random, DType::kInt64, {40, 2}, -1, 8);
      MoeInitRoutingArgs args = plain(x, ids, 9);
      args.drop_pad_mode = 1;
      args.expert_capacity = capacity;
      args.quant_mode = mode;
      args.expert_tokens_num_type = capacity % 3;
      if (capacity == 9) args.active_num = 17;
      const Input one = Input(DType::kFloat32, {1}).fill([](int64_t, int64_t) { return 3; });
      if (mode == 0) args.scale = args.offset = one;
      compare_with_reference(args, {.threads = 2, .isa = std::nullopt});
    }
  }
}

TEST(InitRouting, PrequantisedRowsTakeTheirScalesAlong) {
  std::mt19937 random(4);
  for (DType type :
       {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kFloat4E2M1, DType::kInt8, DType::kHiFloat8}) {
    const Input x = random_rows(random, type, 19, 130, false);
    const Input ids = random_ids(random, DType::kInt32, {19, 4}, 0, 5);
    MoeInitRoutingArgs args = plain(x, ids, 6);
    args.active_expert_range = {2, 6};
    Input scale(DType::kFloat8E8M0, {19, 3, 2}, true);
    for (int64_t i = 0; i < scale.at(19); ++i) scale.data()[i] = static_cast<std::byte>(i);
    if (type != DType::kInt8 && type != DType::kHiFloat8) args.scale = scale;
    compare_with_reference(args, {.threads = 1, .isa = std::nullopt});
  }
}

// Enough rows that every thread gets some.
TEST(InitRouting, ThreadsChangeNothing) {
  std::mt19937 random(6);
  const Input x = random_rows(random, DType::kBFloat16, 3000, 300);
  const Input ids = random_ids(random, DType::kInt32, {3000, 2}, -1, 99);
  for (int64_t mode : {-1, 1, 9}) {
    MoeInitRoutingArgs args = plain(x, ids, 100);
    args.quant_mode = mode;
    args.active_expert_range = {0, 50};
    for (int threads : {1, 2, 5}) compare_with_reference(args, {.threads = threads, .isa = std::nullopt});
  }
}

// Slots that are not used neither shift other rows nor count.
TEST(InitRouting, UnusedSlots) {
  const int ids_of[4][2] = {{0, -1}, {-1, 1}, {-1, -1}, {1, 0}};
  const Input ids = Input(DType::kInt32, {4, 2}).fill([&](int64_t t, int64_t k) { return ids_of[t][k]; });
  const Input x = Input(DType::kFloat32, {4, 3}).fill([](int64_t t, int64_t h) { return t * 10 + h; });
  const MoeInitRoutingArgs args = plain(x, ids, 2);
  Result4 got(args);
  ASSERT_TRUE(moe_init_routing_v3(args, got.tensors));
  EXPECT_EQ(got.counts(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(got.row_idx(), (std::vector<int32_t>{0, -1, -1, 2, -1, -1, 3, 1}));
  const std::vector<float> rows = got.memory[0].values<float>();
  EXPECT_EQ(std::vector<float>(rows.begin(), rows.begin() + 12),
            (std::vector<float>{0, 1, 2, 30, 31, 32, 10, 11, 12, 30, 31, 32}));
  EXPECT_EQ(std::vector<float>(rows.begin() + 12, rows.end()), std::vector<float>(12, 0.0f));
}

// Two ranks with halves of the experts together give what one with all gives.
TEST(InitRouting, RangesAddUp) {
  std::mt19937 random(5);
  const Input x = random_rows(random, DType::kFloat32, 50, 7);
  const Input ids = random_ids(random, DType::kInt32, {50, 3}, 0, 5);
  std::vector<float> sums[2];
  for (int parts : {1, 2}) {
    std::vector<float>& sum = sums[parts - 1];
    sum.assign(50 * 7, 0.0f);
    for (int part = 0; part < parts; ++part) {
      MoeInitRoutingArgs args = plain(x, ids, 6);
      args.active_expert_range = {part * 6 / parts, (part + 1) * 6 / parts};
      Result4 rows(args);
      ASSERT_TRUE(moe_init_routing_v3(args, rows.tensors));
      MoeTokenUnpermuteArgs back;
      back.permuted_tokens = view(rows.tensors.expanded_x);
      back.sorted_indices = view(rows.tensors.expanded_row_idx);
      const Input probs = Input(DType::kFloat32, {50, 3}).fill([](int64_t, int64_t) { return 0.25; });
      back.probs = probs;
      auto outputs = moe_token_unpermute_outputs(back);
      ASSERT_TRUE(outputs) << outputs.status().message();
      Output out(outputs->out);
      ASSERT_TRUE(moe_token_unpermute(back, *outputs));
      const std::vector<float> values = out.values<float>();
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  for (size_t i = 0; i < sums[0].size(); ++i) EXPECT_NEAR(sums[0][i], sums[1][i], 1e-3) << i;
}

// Memory goes with the slots: counts of all these experts would be 24 GB.
TEST(InitRouting, AsManyExpertsAsThereAreNumbers) {
  constexpr int64_t kExperts = 2147483646;
  const int64_t id[] = {kExperts - 1, 5, 12, -1, kExperts - 1, 5, 0, 70000};
  const Input x = Input(DType::kFloat32, {8, 1}).fill([](int64_t t, int64_t) { return t + 1; });
  for (const DType type : {DType::kInt32, DType::kInt64}) {
    const Input ids = Input(type, {8, 1});
    for (int64_t t = 0; t < 8; ++t) {
      if (type == DType::kInt64) reinterpret_cast<int64_t*>(ids.data())[t] = id[t];
      if (type == DType::kInt32) reinterpret_cast<int32_t*>(ids.data())[t] = static_cast<int32_t>(id[t]);
    }
    MoeInitRoutingArgs args = plain(x, ids, kExperts);
    args.active_expert_range = {0, 10};
    Result4 active(args);
    Status status = moe_init_routing_v3(args, active.tensors);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(active.row_idx(), (std::vector<int32_t>{-1, 1, -1, -1, -1, 2, 0, -1}));
    EXPECT_EQ(active.counts(), (std::vector<int64_t>{1, 0, 0, 0, 0, 2, 0, 0, 0, 0}));
    args.active_expert_range = {};
    args.expert_tokens_num_flag = false;
    Result4 all(args);
    status = moe_init_routing_v3(args, all.tensors);
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(all.row_idx(), (std::vector<int32_t>{5, 1, 3, -1, 6, 2, 0, 4}));
  }
}

TEST(InitRouting, SameExpertTwiceInAToken) {
  const int ids_of[3][2] = {{1, 1}, {0, 1}, {1, 1}};
  const Input ids = Input(DType::kInt64, {3, 2}).fill([&](int64_t t, int64_t k) { return ids_of[t][k]; });
  const Input x = Input(DType::kFloat32, {3, 1}).fill([](int64_t t, int64_t) { return t + 1; });
  const MoeInitRoutingArgs args = plain(x, ids, 2);
  Result4 got(args);
  ASSERT_TRUE(moe_init_routing_v3(args, got.tensors));
  EXPECT_EQ(got.counts(), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(got.memory[0].values<float>(), (std::vector<float>{2, 1, 1, 2, 3, 3}));
}

TEST(InitRouting, NoTokensAndNoSlots) {
  for (auto [tokens, topk, hidden] : {std::array<int64_t, 3>{0, 4, 8}, {0, 0, 0}, {5, 0, 8}}) {
    for (int64_t type : {0, 1, 2}) {
      MoeInitRoutingArgs args =
          plain(Input(DType::kBFloat16, {tokens, hidden}), Input(DType::kInt32, {tokens, topk}), 3);
      args.expert_tokens_num_type = type;
      args.quant_mode = 3;
      Result4 got(args);
      ASSERT_TRUE(moe_init_routing_v3(args, got.tensors));
      EXPECT_EQ(got.counts(), std::vector<int64_t>(type == 2 ? 6 : 3, 0));
      EXPECT_TRUE(got.row_idx().empty());
    }
  }
}

// The capacity is the caller's, whatever is left of the batch on this rank.
TEST(InitRouting, DropPadWithoutTokens) {
  MoeInitRoutingArgs args = plain(Input(DType::kBFloat16, {0, 6}), Input(DType::kInt32, {0, 2}), 3);
  args.drop_pad_mode = 1;
  args.expert_capacity = 4;
  args.quant_mode = 1;
  Result4 got(args);
  ASSERT_TRUE(moe_init_routing_v3(args, got.tensors));
  EXPECT_EQ(got.memory[0].bytes(), std::vector<std::byte>(3 * 4 * 6));
  EXPECT_EQ(got.memory[3].values<float>(), std::vector<float>(3 * 4, 0.0f));
  EXPECT_EQ(got.counts(), std::vector<int64_t>(3, 0));
  args.expert_capacity = 0;
  EXPECT_EQ(moe_init_routing_v3_outputs(args).status().message(),
            "expert_capacity = 0: expected 1 to 715827882 with drop_pad_mode 1");
}

TEST(InitRouting, SizesAreExactIn64Bits) {
  MoeInitRoutingArgs args;
  args.x = TensorView(nullptr, DType::kInt8, {37449, 7168});
  args.expert_idx = TensorView(nullptr, DType::kInt32, {37449, 8});
  args.expert_num = 256;
  auto outputs = moe_init_routing_v3_outputs(args);
  ASSERT_TRUE(outputs);
  EXPECT_EQ(outputs->expanded_x.elements(), int64_t{37449} * 8 * 7168);
  args.x = TensorView(nullptr, DType::kInt8, {1 << 20, int64_t{1} << 38});
  args.expert_idx = TensorView(nullptr, DType::kInt32, {1 << 20, 8});
  EXPECT_EQ(moe_init_routing_v3_outputs(args).status().message(),
            "expanded_x has shape (8388608, 274877906944): expected fewer than 2^60 bytes");
  args.x = TensorView(nullptr, DType::kInt8, {1 << 28, 1});
  args.expert_idx = TensorView(nullptr, DType::kInt32, {1 << 28, 8});
  EXPECT_EQ(moe_init_routing_v3_outputs(args).status().message(),
            "expert_idx has shape (268435456, 8): expected at most 2147483647 slots");
}

}  // namespace
}  // namespace megamoe::route
