// Every setting of a buffer and every part of a layer with a wrong value: the error names it.
#include <gtest/gtest.h>

#include <limits>

#include "support/layer.h"

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

const test::LayerShape kShape{64, 32, 8, 2, "A16W16", "swiglu"};

struct ConfigCase {
  const char* name;
  std::function<void(BufferConfig&)> change;
  const char* message;
};

TEST(BufferArguments, WrongSettingsAreNamed) {
  const ConfigCase cases[] = {
      {"num_experts", [](BufferConfig& c) { c.num_experts = 0; },
       "num_experts = 0: expected a value in [1, "},
      {"num_max_tokens", [](BufferConfig& c) { c.num_max_tokens_per_rank = -1; },
       "num_max_tokens_per_rank = -1: expected a value in [1, "},
      {"num_topk", [](BufferConfig& c) { c.num_topk = 0; }, "num_topk = 0: expected a value in [1, 32767]"},
      {"hidden", [](BufferConfig& c) { c.hidden = 0; }, "hidden = 0: expected a value in [1, "},
      {"intermediate", [](BufferConfig& c) { c.intermediate_hidden = -4; },
       "intermediate_hidden = -4: expected a value in [1, "},
      {"max_recv", [](BufferConfig& c) { c.max_recv_token_num = -1; },
       "max_recv_token_num = -1: expected a value in [0, "},
      {"mode", [](BufferConfig& c) { c.dispatch_quant_mode = 5; },
       "dispatch_quant_mode = 5: expected one of 0, 2, 4, 3"},
      {"out dtype",
       [](BufferConfig& c) {
         c.dispatch_quant_mode = 2;
         c.dispatch_quant_out_dtype = DType::kFloat8E5M2;
       },
       "dispatch_quant_out_dtype = float8_e5m2: expected one of undefined, int8 with dispatch_quant_mode 2"},
      {"combine mode", [](BufferConfig& c) { c.combine_quant_mode = 2; },
       "combine_quant_mode = 2: expected 0, 3 or 4"},
      {"comm_alg", [](BufferConfig& c) { c.comm_alg = "ring"; }, "comm_alg = \"ring\": expected \"\""},
      {"weights type", [](BufferConfig& c) { c.topk_weights_type = 2; },
       "topk_weights_type = 2: expected 0 or 1"},
      {"topo", [](BufferConfig& c) { c.topo_type = 3; }, "topo_type = 3: expected 0, 1 or 2"},
      {"comm mode", [](BufferConfig& c) { c.combine_comm_mode = 3; },
       "combine_comm_mode = 3: expected 0, 1 or 2"},
      {"merge and topology", [](BufferConfig& c) { c.combine_comm_mode = 2; },
       "topo_type = 0: expected 1 or 2 with combine_comm_mode 2"},
      {"merge and codes",
       [](BufferConfig& c) {
         c.combine_comm_mode = 1;
         c.combine_quant_mode = 3;
       },
       "combine_quant_mode = 3: expected 0 with combine_comm_mode 1 or 2"},
      {"domains", [](BufferConfig& c) { c.topo_type = 1; },
       "rank_num_per_server = 2: expected a divisor of 1 (ep_world_size) with topo_type 1 or 2"},
      {"profile", [](BufferConfig& c) { c.profile = "tpu"; },
       "profile = \"tpu\": expected one of cpu, ascend_a2_a3, ascend_950, mega_moe_v1"},
  };
  const TestLayer layer(kShape, 1);
  for (const ConfigCase& test_case : cases) {
    BufferConfig config = layer.config(8);
    test_case.change(config);
    const auto buffer = SymmBuffer::create(Group::self(), config);
    ASSERT_FALSE(buffer) << test_case.name;
    EXPECT_NE(buffer.status().message().find(test_case.message), std::string::npos)
        << buffer.status().message();
    EXPECT_FALSE(mega_moe_ccl_buffer_size(1, config)) << test_case.name;
  }
}

TEST(BufferArguments, WrongOptionsAreNamed) {
  const TestLayer layer(kShape, 1);
  BufferOptions options;
  options.threads = -2;
  EXPECT_EQ(SymmBuffer::create(Group::self(), layer.config(8), options).status().message(),
            "threads = -2: expected 0 (automatic) or a number up to 4096");
  options.threads = std::numeric_limits<int>::max();
  EXPECT_EQ(SymmBuffer::create(Group::self(), layer.config(8), options).status().message(),
            "threads = 2147483647: expected 0 (automatic) or a number up to 4096");
  options = {};
  options.deadline = std::chrono::milliseconds(0);
  EXPECT_EQ(SymmBuffer::create(Group::self(), layer.config(8), options).status().message(),
            "deadline = 0 ms: expected a positive time");
}

TEST(BufferArguments, SizesThatOverflowAreRefused) {
  BufferConfig config = TestLayer(kShape, 1).config(8);
  config.num_max_tokens_per_rank = int64_t{1} << 32;
  config.num_topk = 32767;
  config.hidden = int64_t{1} << 24;
  EXPECT_FALSE(mega_moe_ccl_buffer_size(4096, config));
  config = TestLayer(kShape, 1).config(8);
  EXPECT_EQ(*mega_moe_ccl_buffer_size(1, config),
            (*SymmBuffer::create(Group::self(), config))->ccl_buffer_size());
  config.intermediate_hidden = 0;  // the size is known without it, a buffer cannot be made
  EXPECT_TRUE(mega_moe_ccl_buffer_size(1, config));
  const Status status = SymmBuffer::create(Group::self(), config).status();
  EXPECT_NE(status.message().find("intermediate_hidden = 0: expected the width"), std::string::npos)
      << status.message();
}

TEST(BufferArguments, OneWrongRankIsAnErrorOnAllRanks) {
  const TestLayer layer(kShape, 1);
  std::vector<Status> statuses(4);
  test::on_local_ranks(4, [&](int rank, const Group& group) {
    BufferConfig config = layer.config(8);
    if (rank == 2) config.hidden = 0;
    statuses[static_cast<size_t>(rank)] = SymmBuffer::create(group, config).status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), "rank 2: hidden = 0: expected a value in [1, 16777216] (profile cpu)");
  }
}

TEST(BufferArguments, ASettingThatDiffersIsNamedWithBothValuesOnAllRanks) {
  const struct {
    std::function<void(BufferConfig&)> change;
    const char* message;
  } cases[] = {
      {[](BufferConfig& c) { c.num_experts = 9; }, "num_experts = 8 on ranks 0, 2; 9 on rank 1"},
      {[](BufferConfig& c) { c.num_max_tokens_per_rank = 4; },
       "num_max_tokens_per_rank = 8 on ranks 0, 2; 4 on rank 1"},
      {[](BufferConfig& c) { c.num_topk = 1; }, "num_topk = 2 on ranks 0, 2; 1 on rank 1"},
      {[](BufferConfig& c) { c.hidden = 32; }, "hidden = 64 on ranks 0, 2; 32 on rank 1"},
      {[](BufferConfig& c) { c.intermediate_hidden = 33; },
       "intermediate_hidden = 32 on ranks 0, 2; 33 on rank 1"},
      {[](BufferConfig& c) { c.max_recv_token_num = 9; },
       "max_recv_token_num = 0 on ranks 0, 2; 9 on rank 1"},
      {[](BufferConfig& c) { c.dispatch_quant_mode = 2; },
       "dispatch_quant_mode = 0 on ranks 0, 2; 2 on rank 1"},
      {[](BufferConfig& c) { c.dispatch_quant_out_dtype = DType::kBFloat16; },
       "dispatch_quant_out_dtype = undefined on ranks 0, 2; bfloat16 on rank 1"},
      {[](BufferConfig& c) { c.combine_quant_mode = 3; },
       "combine_quant_mode = 0 on ranks 0, 2; 3 on rank 1"},
      {[](BufferConfig& c) { c.topk_weights_type = 1; }, "topk_weights_type = 0 on ranks 0, 2; 1 on rank 1"},
      {[](BufferConfig& c) {
         c.topo_type = 1;
         c.rank_num_per_server = 3;
       },
       "topo_type = 0 on ranks 0, 2; 1 on rank 1"},
      {[](BufferConfig& c) { c.rank_num_per_server = 1; },
       "rank_num_per_server = 2 on ranks 0, 2; 1 on rank 1"},
      {[](BufferConfig& c) { c.combine_comm_mode = 1; }, "combine_comm_mode = 0 on ranks 0, 2; 1 on rank 1"},
  };
  const TestLayer layer(kShape, 1);
  for (const auto& [change, message] : cases) {
    std::vector<Status> statuses(3);
    test::on_local_ranks(3, [&, &change = change](int rank, const Group& group) {
      BufferConfig config = layer.config(8);
      if (rank == 1) change(config);
      statuses[static_cast<size_t>(rank)] = SymmBuffer::create(group, config, test::options(1)).status();
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), Code::kSettingsDiffer) << message;
      EXPECT_EQ(status.message(), std::string(message) + ": expected the same value on every rank");
    }
  }
}

TEST(BufferArguments, AnErrorFoundBeforeCreationReachesAllRanks) {
  const TestLayer layer(kShape, 1);
  std::vector<Status> statuses(3);
  test::on_local_ranks(3, [&](int rank, const Group& group) {
    const Status why(Code::kInvalidType, "hidden = x: expected an integer");
    statuses[static_cast<size_t>(rank)] = rank == 1 ? SymmBuffer::refuse_creation(group, why)
                                                    : SymmBuffer::create(group, layer.config(8)).status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kInvalidType);
    EXPECT_EQ(status.message(), "rank 1: hidden = x: expected an integer");
  }
  EXPECT_EQ(SymmBuffer::refuse_creation(Group::self(), Status::ok()).message(),
            "why = ok: expected the error of the creation");
}

struct LayerCase {
  const char* name;
  std::function<void(Layer&)> change;
  const char* message;
};

TEST(LayerArguments, WrongLayersAreNamed) {
  static uint16_t some[64] = {};
  const LayerCase cases[] = {
      {"activation", [](Layer& l) { l.activation.name = "relu"; },
       "activation = \"relu\": expected one of swiglu, swiglustep, swigluoai, situglu, gelu"},
      {"clamp", [](Layer& l) { l.activation.clamp = -1; }, "activation_clamp = -1: expected a number >= 0"},
      {"clamp nan", [](Layer& l) { l.activation.clamp = std::nan(""); },
       "activation_clamp = nan: expected a number >= 0"},
      {"alpha", [](Layer& l) { l.activation.alpha = 2; },
       "activation_params.alpha = 2: expected none for activation swiglu"},
      {"alpha beyond float",
       [](Layer& l) {
         l.activation.name = "swigluoai";
         l.activation.alpha = 1e300;
       },
       "activation_params.alpha = 1e+300: expected a finite number"},
      {"alpha inf",
       [](Layer& l) {
         l.activation.name = "swigluoai";
         l.activation.alpha = std::numeric_limits<double>::infinity();
       },
       "activation_params.alpha = inf: expected a finite number"},
      {"beta",
       [](Layer& l) {
         l.activation.name = "situglu";
         l.activation.beta = 0;
       },
       "activation_params.beta = 0: expected a number > 0 for activation situglu"},
      {"linear beta",
       [](Layer& l) {
         l.activation.name = "situglu";
         l.activation.linear_beta = -1;
       },
       "activation_params.linear_beta = -1: expected a number > 0 for activation situglu"},
      {"weight1 missing", [](Layer& l) { l.weight1.weight.clear(); }, "weight1"},
      {"weight1 type", [](Layer& l) { l.weight1.weight[0].dtype = DType::kFloat32; }, "weight1"},
      {"weight1 shape", [](Layer& l) { l.weight1.weight[0].shape[1] = 63; }, "weight1"},
      {"weight2 shape", [](Layer& l) { l.weight2.weight[0].shape[2] = 63; }, "weight2"},
      {"weight2 experts", [](Layer& l) { l.weight2.weight[0].shape[0] = 7; }, "weight2"},
      {"scales superfluous",
       [](Layer& l) {
         l.weight1.scale.push_back(TensorView(some, DType::kFloat32, {8, 64}));
       },
       "weight_scales1"},
      {"scales superfluous 2",
       [](Layer& l) {
         l.weight2.scale.push_back(TensorView(some, DType::kFloat32, {8, 64}));
       },
       "weight_scales2"},
  };
  const TestLayer layer(kShape, 1);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(8));
  ASSERT_TRUE(buffer);
  for (const LayerCase& test_case : cases) {
    Layer wrong = layer.layer(1, 0, false);
    test_case.change(wrong);
    const auto moe = MegaMoe::create(*buffer, wrong);
    ASSERT_FALSE(moe) << test_case.name;
    EXPECT_NE(moe.status().message().find(test_case.message), std::string::npos) << moe.status().message();
  }
  EXPECT_FALSE(MegaMoe::create(nullptr, layer.layer(1, 0, false)));
}

TEST(LayerArguments, WeightsOfAnotherScenarioAreNamed) {
  const TestLayer int8(test::LayerShape{64, 32, 8, 2, "A8W8-INT", "swiglu"}, 1);
  auto buffer = SymmBuffer::create(Group::self(), TestLayer(kShape, 1).config(8));
  ASSERT_TRUE(buffer);
  EXPECT_EQ(MegaMoe::create(*buffer, int8.layer(1, 0, true)).status().message(),
            "weight1 has type int8: expected bfloat16 or float4_e2m1 or int4 with scale_group or "
            "float8_e4m3fn with scale_group with dispatch_quant_mode 0");
}

}  // namespace
}  // namespace megamoe
