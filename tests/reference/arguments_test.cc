// Wrong arguments of mega_moe: the text names argument, value and what was expected; outputs stay as they
// were.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "world.h"

namespace megamoe::reference {
namespace {

using Change = std::function<void(World&, std::vector<RankInput>&)>;

/// Status of a call on two ranks with one thing wrong, after checking that nothing was written.
Status refused(bool int8, const Change& change) {
  World w(int8, {3, 2}, 4, 2, 8, 4);
  std::vector<RankInput> inputs = w.inputs();
  change(w, inputs);
  Status status = mega_moe(w.config, w.activation, inputs);
  EXPECT_FALSE(status.is_ok());
  EXPECT_TRUE(w.untouched());
  return status;
}

void expect_error(bool int8, Code code, const std::string& message, const Change& change) {
  const Status status = refused(int8, change);
  EXPECT_EQ(status.message(), message);
  EXPECT_EQ(code_name(status.code()), std::string(code_name(code))) << message;
}

void expect_invalid(const std::string& message, const Change& change) {
  expect_error(false, Code::kInvalidArgument, message, change);
}

TEST(Arguments, TopkIds) {
  for (const auto& [value, text] : {std::pair<int32_t, std::string>{4, "4"},
                                    {-2, "-2"},
                                    {std::numeric_limits<int32_t>::max(), "2147483647"},
                                    {std::numeric_limits<int32_t>::min(), "-2147483648"}}) {
    expect_invalid(
        "rank 1: topk_ids[1][0] = " + text + ": expected -1 (slot not used) or an expert in [0, 4)",
        [v = value](World& w, std::vector<RankInput>&) { w.ranks[1].ids[2] = v; });
  }
  expect_error(false, Code::kInvalidType, "rank 0: topk_ids has type float32: expected int32 or int64",
               [](World&, auto& in) { in[0].call.topk_ids.dtype = DType::kFloat32; });
  expect_invalid("rank 0: topk_ids has shape (3, 3): expected (3, 2)",
                 [](World&, auto& in) { in[0].call.topk_ids.shape[1] = 3; });
  expect_invalid("rank 0: topk_ids is missing: expected int32 or int64",
                 [](World&, auto& in) { in[0].call.topk_ids = {}; });
}

TEST(Arguments, TopkIdsOfMaskedTokensAreNotRead) {
  for (const char* profile : {"cpu", "ascend_a2_a3"}) {
    for (const auto& [first, second] : {std::pair{4, -2}, {3, 3}, {std::numeric_limits<int32_t>::min(), 0}}) {
      World w(false, {3}, 4, 2, 8, 4);
      w.config.profile = profile;
      w.ranks[0].mask = {1, 0, 1};
      w.ranks[0].ids[2] = first;
      w.ranks[0].ids[3] = second;
      EXPECT_EQ(w.run().message(), "") << profile << " " << first << " " << second;
      w.ranks[0].ids[4] = 4;
      EXPECT_EQ(w.run().message(), "topk_ids[2][0] = 4: expected -1 (slot not used) or an expert in [0, 4)");
    }
  }
}

TEST(Arguments, OneRankIsNotNamed) {
  World w(false, {2}, 4, 2, 8, 4);
  w.ranks[0].ids[3] = 64;
  EXPECT_EQ(w.run().message(), "topk_ids[1][1] = 64: expected -1 (slot not used) or an expert in [0, 4)");
}

TEST(Arguments, RepeatedExpertUnderDeviceProfiles) {
  expect_invalid(
      "rank 0: topk_ids[2][1] = 3: expected experts distinct within a token under profile "
      "ascend_a2_a3",
      [](World& w, auto&) {
        w.config.profile = "ascend_a2_a3";
        w.ranks[0].ids[4] = 3;
        w.ranks[0].ids[5] = 3;
      });
}

TEST(Arguments, OtherTensorsOfTheCall) {
  expect_error(false, Code::kInvalidType, "rank 0: x has type float32: expected bfloat16 or float16",
               [](World&, auto& in) { in[0].call.x.dtype = DType::kFloat32; });
  expect_invalid("rank 1: x has shape (2, 7): expected (*, 8)",
                 [](World&, auto& in) { in[1].call.x.shape[1] = 7; });
  expect_invalid("rank 1: x = null: expected memory of shape (2, 8)",
                 [](World&, auto& in) { in[1].call.x.data = nullptr; });
  expect_invalid("rank 1: x has layout FRACTAL_NZ: expected ND",
                 [](World&, auto& in) { in[1].call.x.layout = Layout::kFractalNz; });
  expect_error(false, Code::kInvalidType,
               "rank 0: topk_weights has type float16: expected float32 or bfloat16",
               [](World&, auto& in) { in[0].call.topk_weights.dtype = DType::kFloat16; });
  expect_invalid("rank 0: topk_weights has shape (2, 2): expected (3, 2)",
                 [](World&, auto& in) { in[0].call.topk_weights.shape[0] = 2; });
  expect_error(false, Code::kInvalidType, "rank 0: x_active_mask has type int32: expected int8 or uint8",
               [](World&, auto& in) { in[0].call.x_active_mask = in[0].call.topk_ids; });
  expect_invalid("rank 0: x_active_mask has shape (3, 2): expected (3,)", [](World&, auto& in) {
    in[0].call.x_active_mask = in[0].call.topk_ids;
    in[0].call.x_active_mask.dtype = DType::kUInt8;
  });
  expect_error(false, Code::kInvalidType, "rank 1: y has type float32: expected bfloat16 or float16",
               [](World&, auto& in) { in[1].call.y.dtype = DType::kFloat32; });
  expect_invalid("rank 1: y is missing: expected bfloat16 or float16",
                 [](World&, auto& in) { in[1].call.y = {}; });
  expect_invalid("rank 0: y has shape (2, 8): expected (3, 8)",
                 [](World&, auto& in) { in[0].call.y.shape[0] = 2; });
  expect_error(false, Code::kInvalidType, "rank 0: expert_token_nums has type int64: expected int32",
               [](World&, auto& in) { in[0].call.expert_token_nums.dtype = DType::kInt64; });
  expect_invalid("rank 0: expert_token_nums has shape (4,): expected (2,)",
                 [](World&, auto& in) { in[0].call.expert_token_nums.shape[0] = 4; });
}

TEST(Arguments, Weights) {
  expect_invalid("rank 1: weight1 has shape (2, 8, 6): expected (2, 8, 8)",
                 [](World&, auto& in) { in[1].weight1.weight[0].shape[2] = 6; });
  expect_invalid("rank 0: weight2 has shape (2, 8, 8): expected (2, 4, 8)",
                 [](World&, auto& in) { in[0].weight2 = in[0].weight1; });
  expect_invalid("rank 0: weight2 has shape (2, 4, 8): expected (2, 8, 4)",
                 [](World&, auto& in) { in[0].weight2.k_last = true; });
  expect_invalid("weight1 is missing: expected weights of the experts",
                 [](World&, auto& in) { in[1].weight1.weight.clear(); });
  expect_invalid("rank 0: weight1 has 3 tensors: expected 1 or 2 (experts of this rank)",
                 [](World&, auto& in) { in[0].weight1.weight.resize(3, in[0].weight1.weight[0]); });
  expect_invalid("rank 0: weight1[0] has shape (2, 8, 8): expected (8, 8)",
                 [](World&, auto& in) { in[0].weight1.weight.resize(2, in[0].weight1.weight[0]); });
  expect_invalid("rank 0: weight2 = null: expected memory of shape (2, 4, 8)",
                 [](World&, auto& in) { in[0].weight2.weight[0].data = nullptr; });
  expect_invalid("rank 0: weight2 has layout FRACTAL_NZ_C0_32: expected ND or FRACTAL_NZ for bfloat16",
                 [](World&, auto& in) { in[0].weight2.weight[0].layout = Layout::kFractalNzC0_32; });
  expect_error(false, Code::kInvalidType,
               "weight1 has type float16: expected bfloat16, int8, int4, int32, float8_e5m2, float8_e4m3fn "
               "or float4_e2m1",
               [](World&, auto& in) { in[0].weight1.weight[0].dtype = DType::kFloat16; });
  expect_error(false, Code::kInvalidType, "rank 1: weight2 has type int8: expected bfloat16",
               [](World&, auto& in) { in[1].weight2.weight[0].dtype = DType::kInt8; });
  expect_invalid("rank 0: weight_scales1 has 1 tensors: expected none for bfloat16 weight1",
                 [](World&, auto& in) { in[0].weight1.scale = {in[0].call.topk_weights}; });
  expect_invalid("rank 0: weight2.up has 1 tensors: expected none without a gated activation",
                 [](World&, auto& in) { in[0].weight2.up = in[0].weight2.weight; });
  expect_invalid("rank 0: weight1 has shape (2, 8, 8): expected (2, 8, 4)",
                 [](World&, auto& in) { in[0].weight1.up = in[0].weight1.weight; });
}

TEST(Arguments, Scales) {
  const auto expect = [](Code code, const std::string& message, const Change& change) {
    expect_error(true, code, message, change);
  };
  expect(Code::kInvalidArgument,
         "rank 0: weight_scales1 has 0 tensors: expected 1 or 2 (experts of this rank)",
         [](World&, auto& in) { in[0].weight1.scale.clear(); });
  expect(Code::kInvalidArgument, "rank 1: weight_scales2 has shape (2, 7): expected (2, 8)",
         [](World&, auto& in) { in[1].weight2.scale[0].shape[1] = 7; });
  expect(Code::kInvalidType, "rank 1: weight_scales2 has type bfloat16: expected uint64 or float32",
         [](World&, auto& in) { in[1].weight2.scale[0].dtype = DType::kBFloat16; });
}

TEST(Arguments, Settings) {
  expect_invalid("num_experts = 0: expected 1 to 2147483647",
                 [](World& w, auto&) { w.config.num_experts = 0; });
  expect_invalid("num_topk = 0: expected 1 to 2147483647", [](World& w, auto&) { w.config.num_topk = 0; });
  expect_invalid("hidden = -1: expected 1 to 2147483647", [](World& w, auto&) { w.config.hidden = -1; });
  expect_invalid("intermediate_hidden = 4294967296: expected 1 to 2147483647",
                 [](World& w, auto&) { w.config.intermediate_hidden = int64_t{1} << 32; });
  expect_invalid("num_max_tokens_per_rank = -1: expected 0 or more",
                 [](World& w, auto&) { w.config.num_max_tokens_per_rank = -1; });
  expect_invalid("max_recv_token_num = -1: expected 0 or more",
                 [](World& w, auto&) { w.config.max_recv_token_num = -1; });
  expect_invalid("dispatch_quant_mode = 2: expected 0 for bfloat16 weights",
                 [](World& w, auto&) { w.config.dispatch_quant_mode = 2; });
  expect_error(true, Code::kInvalidArgument, "dispatch_quant_mode = 4: expected 2 for int8 weights",
               [](World& w, auto&) { w.config.dispatch_quant_mode = 4; });
  expect_error(true, Code::kInvalidType, "dispatch_quant_out_dtype = bfloat16: expected undefined or int8",
               [](World& w, auto&) { w.config.dispatch_quant_out_dtype = DType::kBFloat16; });
  expect_invalid("comm_alg = \"ring\": expected \"\"", [](World& w, auto&) { w.config.comm_alg = "ring"; });
  expect_invalid("activation = \"relu\": expected one of swiglu, swiglustep, swigluoai, situglu, gelu",
                 [](World& w, auto&) { w.activation.name = "relu"; });
  World none(false, {1}, 1, 1, 2, 1);
  std::vector<RankInput> no_ranks;
  EXPECT_EQ(mega_moe(none.config, none.activation, no_ranks).message(),
            "ranks = 0: expected at least 1 rank");
}

TEST(Arguments, Capacity) {
  expect_error(false, Code::kCapacity, "rank 0: x has 3 tokens: expected at most 2 (num_max_tokens_per_rank)",
               [](World& w, auto&) { w.config.num_max_tokens_per_rank = 2; });
  expect_error(false, Code::kCapacity, "rank 1 receives 10 rows: expected at most 9 (max_recv_token_num)",
               [](World& w, auto&) {
                 w.config.max_recv_token_num = 9;
                 w.ranks[0].ids = {2, 3, 2, 3, 3, 2};
                 w.ranks[1].ids = {3, 2, 3, 2};
               });
  World w(false, {3, 2}, 4, 2, 8, 4);
  w.config.max_recv_token_num = 10;
  w.ranks[0].ids = {2, 3, 2, 3, 3, 2};
  w.ranks[1].ids = {3, 2, 3, 2};
  EXPECT_TRUE(w.run());
}

}  // namespace
}  // namespace megamoe::reference
