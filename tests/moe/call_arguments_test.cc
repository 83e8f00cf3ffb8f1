// Every argument of a call with a wrong value: the error names it on all ranks, and no output is written.
#include <gtest/gtest.h>

#include <limits>

#include "support/layer.h"

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

const test::LayerShape kShape{64, 32, 8, 2, "A16W16", "swiglu"};

struct CallCase {
  const char* name;
  std::function<void(CallArgs&)> change;
  const char* message;
};

TEST(CallArguments, WrongTensorsAreNamedAndNothingIsWritten) {
  static int32_t ids[32];
  static uint16_t wide[16 * 64];
  const auto with_id = [](int32_t value) {
    return [value](CallArgs& a) {
      std::copy_n(static_cast<const int32_t*>(a.topk_ids.data), 12, ids);
      ids[3 * 2 + 1] = value;
      a.topk_ids.data = ids;
    };
  };
  const CallCase cases[] = {
      {"x type", [](CallArgs& a) { a.x.dtype = DType::kFloat32; },
       "x has type float32: expected bfloat16 or float16"},
      {"x missing", [](CallArgs& a) { a.x = {}; }, "x is missing: expected bfloat16 or float16"},
      {"x shape", [](CallArgs& a) { a.x.shape[1] = 63; }, "x has shape (6, 63): expected (T, 64)"},
      {"x dims", [](CallArgs& a) { a.x.dims = 1; }, "x has shape (6,): expected (T, 64)"},
      {"x tokens", [](CallArgs& a) { a.x.shape[0] = -1; }, "x has shape (-1, 64): expected (T, 64)"},
      {"x many dims", [](CallArgs& a) { a.x.dims = 1000; },
       "x has shape of 1000 dimensions: expected (T, 64)"},
      {"x null", [](CallArgs& a) { a.x.data = nullptr; }, "x has no data: expected 384 elements"},
      {"x layout", [](CallArgs& a) { a.x.layout = Layout::kFractalNz; },
       "x has layout FRACTAL_NZ: expected ND"},
      {"tokens",
       [](CallArgs& a) {
         a.x = {wide, DType::kBFloat16, {9, 64}};
       },
       "x has 9 tokens: expected at most num_max_tokens_per_rank = 8"},
      {"ids type", [](CallArgs& a) { a.topk_ids.dtype = DType::kFloat32; },
       "topk_ids has type float32: expected int32 or int64"},
      {"ids shape", [](CallArgs& a) { a.topk_ids.shape[1] = 3; },
       "topk_ids has shape (6, 3): expected (6, 2)"},
      {"id = E", with_id(8), "topk_ids[3][1] = 8: expected -1 (slot not used) or an expert in [0, 8)"},
      {"id = -2", with_id(-2), "topk_ids[3][1] = -2: expected -1"},
      {"id = INT_MAX", with_id(std::numeric_limits<int32_t>::max()),
       "topk_ids[3][1] = 2147483647: expected -1"},
      {"id = INT_MIN", with_id(std::numeric_limits<int32_t>::min()),
       "topk_ids[3][1] = -2147483648: expected -1"},
      {"weights type", [](CallArgs& a) { a.topk_weights.dtype = DType::kInt32; },
       "topk_weights has type int32: expected float32 or bfloat16"},
      {"weights shape", [](CallArgs& a) { a.topk_weights.shape[0] = 5; },
       "topk_weights has shape (5, 2): expected (6, 2)"},
      {"mask type",
       [](CallArgs& a) {
         a.x_active_mask = {ids, DType::kInt32, {6}};
       },
       "x_active_mask has type int32: expected int8 or uint8"},
      {"mask shape",
       [](CallArgs& a) {
         a.x_active_mask = {ids, DType::kInt8, {7}};
       },
       "x_active_mask has shape (7,): expected (6,)"},
      {"y type", [](CallArgs& a) { a.y.dtype = DType::kFloat32; },
       "y has type float32: expected bfloat16 or float16"},
      {"y shape", [](CallArgs& a) { a.y.shape[0] = 5; }, "y has shape (5, 64): expected (6, 64)"},
      {"y missing", [](CallArgs& a) { a.y = {}; }, "y is missing: expected bfloat16 or float16"},
      {"nums type", [](CallArgs& a) { a.expert_token_nums.dtype = DType::kInt64; },
       "expert_token_nums has type int64: expected int32"},
      {"nums shape", [](CallArgs& a) { a.expert_token_nums.shape[0] = 9; },
       "expert_token_nums has shape (9,): expected (8,)"},
  };
  TestLayer layer(kShape, 1);
  RankTokens tokens = layer.tokens(6);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(8));
  ASSERT_TRUE(buffer);
  auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
  ASSERT_TRUE(moe);
  for (const CallCase& test_case : cases) {
    layer.poison(tokens);
    const RankTokens before = tokens;
    CallArgs args = layer.args(tokens, 8);
    test_case.change(args);
    const Status status = (*moe)->run(args);
    ASSERT_FALSE(status) << test_case.name;
    EXPECT_EQ(status.message().rfind(test_case.message, 0), 0u) << test_case.name << ": " << status.message();
    EXPECT_EQ(tokens.y, before.y) << test_case.name;
    EXPECT_EQ(tokens.counts, before.counts) << test_case.name;
    EXPECT_TRUE((*moe)->run(layer.args(tokens, 8))) << "the next legal call works";
  }
}

TEST(CallArguments, AWrongIdOnOneRankIsTheSameErrorOnAllAndTheNextCallWorks) {
  TestLayer layer(kShape, 1);
  std::vector<RankTokens> ranks;
  for (int r = 0; r < 4; ++r) ranks.push_back(layer.tokens(5));
  std::vector<Status> wrong(4);
  std::vector<Status> right(4);
  const std::vector<uint16_t> untouched = ranks[0].y;
  test::on_local_ranks(4, [&](int rank, const Group& group) {
    RankTokens& tokens = ranks[static_cast<size_t>(rank)];
    auto buffer = SymmBuffer::create(group, layer.config(8), test::options(1));
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(4, rank, true));
    ASSERT_TRUE(moe);
    const int32_t good = tokens.ids[3];
    if (rank == 2) tokens.ids[3] = 8;
    wrong[static_cast<size_t>(rank)] = (*moe)->run(layer.args(tokens, 2));
    EXPECT_EQ(tokens.y, untouched);
    tokens.ids[3] = good;
    right[static_cast<size_t>(rank)] = (*moe)->run(layer.args(tokens, 2));
  });
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(wrong[r].code(), Code::kInvalidArgument);
    EXPECT_EQ(wrong[r].message(),
              "rank 2: topk_ids[1][1] = 8: expected -1 (slot not used) or an expert in [0, 8)");
    EXPECT_TRUE(right[r]) << right[r].message();
  }
}

TEST(CallArguments, ActivationsThatDifferAreTheSameErrorOnAllAndTheNextCallWorks) {
  const std::pair<std::function<void(Activation&)>, const char*> cases[] = {
      {[](Activation& a) { a.name = "swiglustep"; }, "swiglustep"},
      {[](Activation& a) { a.clamp = 7; }, "swiglu (clamp 7)"},
      {[](Activation& a) {
         a.name = "situglu";
         a.beta = 1.5;
         a.linear_beta = 2;
       },
       "situglu (beta 1.5, linear_beta 2)"},
  };
  TestLayer layer(kShape, 1);
  for (const auto& [change, text] : cases) {
    std::vector<RankTokens> ranks;
    for (int r = 0; r < 3; ++r) ranks.push_back(layer.tokens(5));
    test::on_local_ranks(3, [&, &change = change, &text = text](int rank, const Group& group) {
      RankTokens& tokens = ranks[static_cast<size_t>(rank)];
      const std::vector<uint16_t> untouched = tokens.y;
      auto buffer = SymmBuffer::create(group, layer.config(8), test::options(1));
      ASSERT_TRUE(buffer) << buffer.status().message();
      Layer other = layer.layer(3, rank, true);
      if (rank == 1) change(other.activation);
      auto differing = MegaMoe::create(*buffer, other);
      ASSERT_TRUE(differing) << differing.status().message();
      const int64_t experts = layer.local_experts(3, rank);
      const Status status = (*differing)->run(layer.args(tokens, experts));
      EXPECT_EQ(status.code(), Code::kSettingsDiffer);
      EXPECT_EQ(status.message(), std::string("activation = swiglu on ranks 0, 2; ") + text +
                                      " on rank 1: expected the same value on every rank");
      EXPECT_EQ(tokens.y, untouched);
      auto same = MegaMoe::create(*buffer, layer.layer(3, rank, true));
      ASSERT_TRUE(same);
      EXPECT_TRUE((*same)->run(layer.args(tokens, experts))) << "the next legal call works";
    });
  }
}

TEST(CallArguments, TooManyRowsForOneRankIsTheSameErrorOnAll) {
  TestLayer layer(kShape, 1);
  std::vector<RankTokens> ranks;
  for (int r = 0; r < 4; ++r)
    ranks.push_back(layer.tokens(8, [](int64_t, int64_t k) { return static_cast<int32_t>(6 + k); }));
  std::vector<Status> statuses(4);
  test::on_local_ranks(4, [&](int rank, const Group& group) {
    RankTokens& tokens = ranks[static_cast<size_t>(rank)];
    BufferConfig config = layer.config(8);
    config.max_recv_token_num = 63;
    auto buffer = SymmBuffer::create(group, config, test::options(1));
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, layer.layer(4, rank, true));
    ASSERT_TRUE(moe);
    const std::vector<uint16_t> untouched = tokens.y;
    const std::vector<int32_t> counts = tokens.counts;
    statuses[static_cast<size_t>(rank)] = (*moe)->run(layer.args(tokens, 2));
    EXPECT_EQ(tokens.y, untouched);
    EXPECT_EQ(tokens.counts, counts);
    CallArgs fewer = layer.args(tokens, 2);
    for (auto* tensor : {&fewer.x, &fewer.topk_ids, &fewer.topk_weights}) tensor->shape[0] = 7;
    fewer.y.shape[0] = 7;
    EXPECT_TRUE((*moe)->run(fewer)) << "the next legal call works";
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kCapacity);
    EXPECT_EQ(status.message(), statuses[0].message());
    for (const char* part : {"max_recv_token_num", "rank 3", "64", "63"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
}

TEST(CallArguments, ADestroyedBufferRefusesCalls) {
  TestLayer layer(kShape, 1);
  RankTokens tokens = layer.tokens(3);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(8));
  ASSERT_TRUE(buffer);
  auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
  ASSERT_TRUE(moe);
  (*buffer)->destroy();
  (*buffer)->destroy();
  EXPECT_EQ((*moe)->run(layer.args(tokens, 8)).code(), Code::kClosed);
  EXPECT_EQ(MegaMoe::create(*buffer, layer.layer(1, 0, true)).status().code(), Code::kClosed);
}

TEST(CallArguments, StridedTensorsGiveTheBitsOfContiguousOnes) {
  TestLayer layer(kShape, 9);
  RankTokens tokens = layer.tokens(5);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(8));
  ASSERT_TRUE(buffer);
  auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
  ASSERT_TRUE(moe);
  ASSERT_TRUE((*moe)->run(layer.args(tokens, 8)));
  // The same values in columns: element (t, h) at h * 5 + t, ids as int64 with a gap, outputs likewise.
  std::vector<uint16_t> x(5 * 64), y(5 * 64, 0x7fff);
  std::vector<int64_t> ids(5 * 2 * 3, 99);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t h = 0; h < 64; ++h)
      x[static_cast<size_t>(h * 5 + t)] = tokens.x[static_cast<size_t>(t * 64 + h)];
    for (int64_t k = 0; k < 2; ++k)
      ids[static_cast<size_t>(t * 6 + k * 3)] = tokens.ids[static_cast<size_t>(t * 2 + k)];
  }
  CallArgs args = layer.args(tokens, 8);
  args.x = {x.data(), DType::kBFloat16, {5, 64}};
  args.x.strides[0] = 1, args.x.strides[1] = 5;
  args.y = {y.data(), DType::kBFloat16, {5, 64}};
  args.y.strides[0] = 1, args.y.strides[1] = 5;
  args.topk_ids = {ids.data(), DType::kInt64, {5, 2}};
  args.topk_ids.strides[0] = 6, args.topk_ids.strides[1] = 3;
  ASSERT_TRUE((*moe)->run(args));
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t h = 0; h < 64; ++h) {
      ASSERT_EQ(y[static_cast<size_t>(h * 5 + t)], tokens.y[static_cast<size_t>(t * 64 + h)]);
    }
  }
}

}  // namespace
}  // namespace megamoe
