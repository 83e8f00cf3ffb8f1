// Wrong arguments of the scenarios with narrow weights, of shared experts and of the ways home.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "scenario_world.h"

namespace megamoe::reference {
namespace {

using Change = std::function<void(ScenarioWorld&, std::vector<RankInput>&)>;

void expect_error(const ScenarioTypes& types, Code code, const std::string& message, const Change& change) {
  ScenarioWorld w(types, {3, 2}, 4, 2);
  w.shared1 = w.random_layer(types.weight, 2, 72, 80);
  w.shared2 = w.random_layer(types.weight, 2, 40, 72);
  std::vector<RankInput> inputs = w.inputs();
  change(w, inputs);
  const Status status = mega_moe(w.config, w.activation, inputs);
  EXPECT_EQ(status.message(), message);
  EXPECT_EQ(code_name(status.code()), std::string(code_name(code))) << message;
  const uint64_t untouched = 0x7fc1;
  EXPECT_EQ(get_bits(w.ranks[0].y.ref.data, DType::kBFloat16, 0), untouched);
}

void expect_invalid(const ScenarioTypes& types, const std::string& message, const Change& change) {
  expect_error(types, Code::kInvalidArgument, message, change);
}
void expect_type_error(const ScenarioTypes& types, const std::string& message, const Change& change) {
  expect_error(types, Code::kInvalidType, message, change);
}

TEST(ScenarioArguments, DispatchSettings) {
  expect_invalid(kA8W8E4M3, "dispatch_quant_mode = 2: expected 0 or 4 for float8_e4m3fn weights",
                 [](auto& w, auto&) { w.config.dispatch_quant_mode = 2; });
  expect_invalid(kA8W4Int, "dispatch_quant_mode = 0: expected 2 for int4 weights",
                 [](auto& w, auto&) { w.config.dispatch_quant_mode = 0; });
  expect_type_error(kA8W8E5M2, "dispatch_quant_out_dtype = float8_e4m3fn: expected undefined or float8_e5m2",
                    [](auto& w, auto&) { w.config.dispatch_quant_out_dtype = DType::kFloat8E4M3; });
  expect_type_error(kA4W4Fp, "dispatch_quant_out_dtype = undefined: expected float8_e4m3fn or float4_e2m1",
                    [](auto& w, auto&) { w.config.dispatch_quant_out_dtype = DType::kUndefined; });
}

TEST(ScenarioArguments, TokensAsCodes) {
  expect_type_error(kA8W8E4M3, "rank 0: x has type bfloat16: expected float8_e4m3fn",
                    [](auto& w, auto&) { w.config.dispatch_quant_mode = 0; });
  expect_invalid(kA8W8E4M3, "rank 1: scales is given: expected none for x of type bfloat16",
                 [](auto&, auto& in) { in[1].call.scales = in[1].call.topk_weights; });
  const auto coded = [](const std::function<void(CallArgs&)>& change) {
    return [change](ScenarioWorld& w, std::vector<RankInput>& in) {
      w.config.dispatch_quant_mode = 0;
      for (RankInput& rank : in) {
        CallArgs& call = rank.call;
        call.x = TensorView(call.x.data, w.types.token, {call.x.shape[0], w.hidden});
        call.scales = TensorView(call.x.data, DType::kFloat8E8M0, {call.x.shape[0], 3});
      }
      change(in[0].call);
    };
  };
  expect_invalid(kA8W8E4M3, "rank 0: scales is missing: expected float8_e8m0",
                 coded([](CallArgs& call) { call.scales = {}; }));
  expect_invalid(kA4W4Fp, "rank 0: scales has shape (3, 2): expected (3, 3)",
                 coded([](CallArgs& call) { call.scales.shape[1] = 2; }));
  expect_type_error(kA4W4Fp, "rank 0: scales has type uint8: expected float8_e8m0",
                    coded([](CallArgs& call) { call.scales.dtype = DType::kUInt8; }));
  expect_invalid(kA4W4Fp,
                 "rank 0: x has shape (3, 72): expected rows of whole bytes, two elements of "
                 "float4_e2m1 in each",
                 coded([](CallArgs& call) { call.x.strides[0] = 73; }));
}

TEST(ScenarioArguments, WeightsAndScales) {
  expect_invalid(kA8W4Fp, "rank 1: weight2 has shape (2, 72, 36): expected (2, 72, 40)",
                 [](auto&, auto& in) { in[1].weight2.weight[0].shape[2] = 36; });
  expect_invalid(kA8W8E4M3,
                 "rank 0: weight1 has layout FRACTAL_NZ_C0_32: expected ND or FRACTAL_NZ for float8_e4m3fn",
                 [](auto&, auto& in) { in[0].weight1.weight[0].layout = Layout::kFractalNzC0_32; });
  expect_invalid(kA4W4Fp,
                 "rank 0: weight1 has shape (2, 80, 72): expected rows of whole bytes, two elements of "
                 "float4_e2m1 in each",
                 [](auto&, auto& in) { in[0].weight1.weight[0].strides[2] = 2; });
  expect_invalid(kA8W4Int, "rank 0: weight1 has shape (2, 72, 80): expected (2, 72, 10)",
                 [](auto&, auto& in) { in[0].weight1.weight[0].dtype = DType::kInt32; });
  expect_type_error(kA8W4Int,
                    "rank 0: weight1 has type int32: expected int4 for rows of 76, which is no multiple of 8",
                    [](ScenarioWorld& w, auto& in) {
                      w.config.intermediate_hidden = 38;
                      in[0].weight1.weight[0].dtype = DType::kInt32;
                    });
  expect_type_error(kA8W4Int, "rank 1: weight2 has type int8: expected int4 or int32",
                    [](auto&, auto& in) { in[1].weight2.weight[0].dtype = DType::kInt8; });
  expect_invalid(kA8W8E5M2, "rank 0: weight_scales1 has shape (2, 80, 2, 1): expected (2, 80, 2, 2)",
                 [](auto&, auto& in) { in[0].weight1.scale[0].shape[3] = 1; });
  expect_type_error(kA8W8E5M2, "rank 0: weight_scales2 has type float32: expected float8_e8m0",
                    [](auto&, auto& in) { in[0].weight2.scale[0].dtype = DType::kFloat32; });
  expect_invalid(kA8W8E5M2, "rank 0: weight_scales2 has 0 tensors: expected 1 or 2 (experts of this rank)",
                 [](auto&, auto& in) { in[0].weight2.scale.clear(); });
}

TEST(ScenarioArguments, Biases) {
  expect_invalid(kA16W16, "rank 0: bias1 has shape (2, 79): expected (2, 80)", [](auto& w, auto& in) {
    in[0].weight1.bias = {TensorView(w.layer1.weight.ref.data, DType::kFloat32, {2, 79})};
  });
  expect_type_error(kA8W4Int, "rank 1: bias2 has type bfloat16: expected float32", [](auto& w, auto& in) {
    in[1].weight2.bias = {TensorView(w.layer1.weight.ref.data, DType::kBFloat16, {2, 72})};
  });
  expect_invalid(kA8W8Int, "rank 0: bias2 has 3 tensors: expected 1 or 2 (experts of this rank)",
                 [](auto&, auto& in) { in[0].weight2.bias.resize(3); });
}

TEST(ScenarioArguments, SharedExperts) {
  expect_invalid(kA8W8E4M3,
                 "rank 1: shared_weight2 is missing: expected weights of the experts of shared_weight1",
                 [](auto&, auto& in) { in[1].shared_weight2 = {}; });
  expect_invalid(kA8W8E4M3,
                 "rank 1: shared_weight1 is missing: expected weights of the experts of shared_weight2",
                 [](auto&, auto& in) { in[1].shared_weight1 = {}; });
  expect_invalid(kA8W8E4M3, "rank 0: shared_weight1 has 5 experts: expected 0 to 4",
                 [](auto&, auto& in) { in[0].shared_weight1.weight[0].shape[0] = 5; });
  expect_invalid(kA8W8E4M3, "rank 0: shared_weight2 has shape (3, 72, 40): expected (2, 72, 40)",
                 [](auto&, auto& in) { in[0].shared_weight2.weight[0].shape[0] = 3; });
  expect_invalid(kA8W8E4M3, "rank 0: shared_weight_scales1 has shape (2, 80, 3, 2): expected (2, 80, 2, 2)",
                 [](auto&, auto& in) { in[0].shared_weight1.scale[0].shape[2] = 3; });
  expect_type_error(kA8W8E4M3,
                    "rank 0: shared_expert_quant_out_dtype = float8_e5m2: expected float8_e4m3fn for "
                    "shared_weight1 of type float8_e4m3fn",
                    [](auto&, auto& in) { in[0].shared_expert_quant_out_dtype = DType::kFloat8E5M2; });
  expect_type_error(kA8W8E4M3,
                    "rank 0: shared_expert_quant_out_dtype = undefined: expected int8 for shared_weight1 of "
                    "type int4",
                    [](auto&, auto& in) { in[0].shared_weight1.weight[0].dtype = DType::kInt4; });
  expect_type_error(kA4W4Fp,
                    "rank 0: shared_expert_quant_out_dtype = float8_e4m3fn: expected undefined or "
                    "float4_e2m1, the type of x",
                    [](ScenarioWorld& w, auto& in) {
                      w.config.dispatch_quant_mode = 0;
                      in[0].shared_expert_quant_out_dtype = DType::kFloat8E4M3;
                    });
}

TEST(ScenarioArguments, WaysHome) {
  const auto expect = [](const std::string& message, const std::function<void(BufferConfig&)>& change) {
    expect_invalid(kA8W8E4M3, message, [&](ScenarioWorld& w, auto&) { change(w.config); });
  };
  expect("combine_quant_mode = 2: expected 0, 3 or 4", [](auto& c) { c.combine_quant_mode = 2; });
  expect("combine_comm_mode = 3: expected 0, 1 or 2", [](auto& c) { c.combine_comm_mode = 3; });
  expect("topk_weights_type = -1: expected 0 or 1", [](auto& c) { c.topk_weights_type = -1; });
  expect("topo_type = 3: expected 0, 1 or 2", [](auto& c) { c.topo_type = 3; });
  expect("combine_quant_mode = 4: expected 0 with combine_comm_mode 1", [](auto& c) {
    c.combine_quant_mode = 4;
    c.combine_comm_mode = 1;
  });
  expect("combine_quant_mode = 3: expected 0 with combine_comm_mode 2", [](auto& c) {
    c.combine_quant_mode = 3;
    c.combine_comm_mode = 2;
    c.topo_type = 1;
  });
  expect("topo_type = 1: expected 0 with combine_comm_mode 1", [](auto& c) {
    c.combine_comm_mode = 1;
    c.topo_type = 1;
  });
  expect("topo_type = 0: expected 1 or 2 with combine_comm_mode 2", [](auto& c) { c.combine_comm_mode = 2; });
  for (const int servers : {0, -2, 3, 4}) {
    expect("rank_num_per_server = " + std::to_string(servers) + ": expected a divisor of the 2 ranks",
           [servers](auto& c) {
             c.topo_type = 1;
             c.rank_num_per_server = servers;
           });
  }
}

TEST(ScenarioArguments, RowsThatArrive) {
  expect_error(kA8W4Fp, Code::kCapacity, "rank 0 receives 10 rows: expected at most 9 (max_recv_token_num)",
               [](ScenarioWorld& w, auto&) {
                 w.config.max_recv_token_num = 9;
                 for (TokenData& rank : w.ranks) std::fill_n(w.ids(rank), rank.tokens * 2, 1);
               });
}

}  // namespace
}  // namespace megamoe::reference
