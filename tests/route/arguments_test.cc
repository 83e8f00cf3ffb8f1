// Wrong arguments of the routing operators: the exact error, and nothing written.
#include <gtest/gtest.h>

#include <climits>
#include <cmath>
#include <functional>

#include "megamoe/routing.h"
#include "route/tensors.h"

namespace megamoe::route {
namespace {

struct InitCase {
  std::function<void(MoeInitRoutingArgs&)> change;
  const char* message;
};

class InitArguments : public testing::Test {
 protected:
  InitArguments() {
    args.x = x;
    args.expert_idx = ids;
    args.expert_num = 4;
    args.expert_tokens_num_flag = true;
  }
  /// Runs with outputs that suit the right arguments.
  Status run(const MoeInitRoutingArgs& wrong, bool& untouched) {
    auto outputs = moe_init_routing_v3_outputs(args);
    EXPECT_TRUE(outputs);
    Output memory[] = {Output(outputs->expanded_x), Output(outputs->expanded_row_idx),
                       Output(outputs->expert_tokens_count_or_cumsum), Output(outputs->expanded_scale)};
    const Status status = moe_init_routing_v3(wrong, *outputs);
    untouched = true;
    for (const Output& output : memory) untouched = untouched && output.untouched();
    return status;
  }
  const Input x = Input(DType::kBFloat16, {2, 8}).fill([](int64_t, int64_t) { return 1; });
  const Input ids = Input(DType::kInt32, {2, 2}).fill([](int64_t t, int64_t k) { return t + k; });
  MoeInitRoutingArgs args;
};

TEST_F(InitArguments, EachWrongValueIsNamed) {
  const Input f32(DType::kFloat32, {2, 8}), odd(DType::kBFloat16, {2, 7}), int8(DType::kInt8, {2, 8});
  const Input none(DType::kBFloat16, {2, 0}), one(DType::kFloat32, {1}), rows(DType::kFloat32, {3, 8});
  const Input fp4_odd(DType::kFloat4E2M1, {2, 7}), e8m0(DType::kFloat8E8M0, {2, 1, 2}),
      vector(DType::kBFloat16, {8});
  const Input ids16(DType::kUInt8, {2, 2}), ids3(DType::kInt32, {3, 2}), real(DType::kFloat32, {2, 2});
  using Args = MoeInitRoutingArgs;
  const InitCase cases[] = {
      {[&](Args& a) { a.x = {}; },
       "x is missing: expected float32, float16, bfloat16, int8, hifloat8, float8_e4m3fn, float8_e5m2 or "
       "float4_e2m1"},
      {[&](Args& a) { a.x = ids; },
       "x has type int32: expected float32, float16, bfloat16, int8, hifloat8, float8_e4m3fn, float8_e5m2 or "
       "float4_e2m1"},
      {[&](Args& a) { a.x = int8, a.quant_mode = 1; },
       "x has type int8: expected float32 or float16 or bfloat16 with quant_mode 1"},
      {[&](Args& a) { a.x = f32, a.quant_mode = 2; },
       "x has type float32: expected float16 or bfloat16 with quant_mode 2"},
      {[&](Args& a) { a.x = vector; }, "x has shape (8,): expected (*, *)"},
      {[&](Args& a) { a.x = none; }, "x has shape (2, 0): expected at least 1 column"},
      {[&](Args& a) { a.x = odd, a.quant_mode = 13; },
       "x has shape (2, 7): expected an even number of columns with quant_mode 13"},
      {[&](Args& a) { a.x = fp4_odd; },
       "x has shape (2, 7): expected an even last dimension with type float4_e2m1"},
      {[&](Args& a) { a.x.layout = Layout::kFractalNz; }, "x has layout FRACTAL_NZ: expected ND"},
      {[&](Args& a) { a.x.data = nullptr; }, "x = null: expected memory of shape (2, 8)"},
      {[&](Args& a) { a.expert_idx = {}; }, "expert_idx is missing: expected int32 or int64"},
      {[&](Args& a) { a.expert_idx = ids16; }, "expert_idx has type uint8: expected int32 or int64"},
      {[&](Args& a) { a.expert_idx = real; }, "expert_idx has type float32: expected int32 or int64"},
      {[&](Args& a) { a.expert_idx = ids3; }, "expert_idx has shape (3, 2): expected (2, *)"},
      {[&](Args& a) { a.scale = one, a.quant_mode = 2; },
       "scale has type float32: expected no scale with quant_mode 2"},
      {[&](Args& a) { a.scale = one; }, "scale has shape (1,): expected (2,)"},
      {[&](Args& a) { a.scale = e8m0; }, "scale has type float8_e8m0: expected float32"},
      {[&](Args& a) { a.scale = rows, a.quant_mode = 1; }, "scale has shape (3, 8): expected (4, 8)"},
      {[&](Args& a) { a.scale = rows, a.quant_mode = 13; }, "scale has shape (3, 8): expected (1, 8)"},
      {[&](Args& a) { a.quant_mode = 0; }, "scale is missing: expected float32"},
      {[&](Args& a) { a.quant_mode = 7; }, "scale is missing: expected float32"},
      {[&](Args& a) { a.quant_mode = 0, a.scale = one; }, "offset is missing: expected float32"},
      {[&](Args& a) { a.offset = one; }, "offset has type float32: expected no offset with quant_mode -1"},
      {[&](Args& a) { a.active_num = -2; }, "active_num = -2: expected -1 or more"},
      {[&](Args& a) { a.expert_capacity = -2; }, "expert_capacity = -2: expected -1 or more"},
      {[&](Args& a) { a.drop_pad_mode = 1, a.expert_capacity = 3; },
       "expert_capacity = 3: expected 1 to 2 with drop_pad_mode 1"},
      {[&](Args& a) { a.drop_pad_mode = 1, a.expert_capacity = 0; },
       "expert_capacity = 0: expected 1 to 2 with drop_pad_mode 1"},
      {[&](Args& a) { a.expert_num = 0; }, "expert_num = 0: expected 1 to 2147483646"},
      {[&](Args& a) { a.expert_num = -1; }, "expert_num = -1: expected 1 to 2147483646"},
      {[&](Args& a) { a.drop_pad_mode = 2; }, "drop_pad_mode = 2: expected 0 or 1"},
      {[&](Args& a) { a.expert_tokens_num_type = 3; },
       "expert_tokens_num_type = 3: expected 0 (cumsum), 1 (count) or 2 (key_value)"},
      {[&](Args& a) { a.quant_mode = 10; },
       "quant_mode = 10: expected one of -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17"},
      {[&](Args& a) { a.quant_mode = 2, a.drop_pad_mode = 1, a.expert_capacity = 1; },
       "quant_mode = 2: expected one of -1, 0, 1 with drop_pad_mode 1"},
      {[&](Args& a) { a.active_expert_range = {1}; }, "active_expert_range has 1 elements: expected 0 or 2"},
      {[&](Args& a) {
         a.active_expert_range = {1, 5};
       },
       "active_expert_range = [1, 5]: expected 0 <= start <= end <= expert_num = 4"},
      {[&](Args& a) {
         a.active_expert_range = {3, 2};
       },
       "active_expert_range = [3, 2]: expected 0 <= start <= end <= expert_num = 4"},
      {[&](Args& a) {
         a.active_expert_range = {0, 3}, a.drop_pad_mode = 1, a.expert_capacity = 1;
       },
       "active_expert_range = [0, 3]: expected [0, 4] with drop_pad_mode 1"},
      {[&](Args& a) { a.row_idx_type = 2; }, "row_idx_type = 2: expected 0 (gather) or 1 (scatter)"},
      {[&](Args& a) { a.row_idx_type = 1, a.drop_pad_mode = 1, a.expert_capacity = 1; },
       "row_idx_type = 1: expected 0 with drop_pad_mode 1"},
      {[&](Args& a) { a.mx_scale = "ceil"; }, "mx_scale = ceil: expected round_up or floor"},
      {[&](Args& a) { a.mx_scale = "floor", a.quant_mode = 16; },
       "mx_scale = floor: expected round_up with quant_mode 16"},
      {[&](Args& a) { a.expert_num = 1; }, "expert_tokens_count_or_cumsum has shape (4,): expected (1,)"},
  };
  for (const InitCase& c : cases) {
    MoeInitRoutingArgs wrong = args;
    c.change(wrong);
    bool untouched = false;
    EXPECT_EQ(run(wrong, untouched).message(), c.message);
    EXPECT_TRUE(untouched) << c.message;
  }
}

TEST_F(InitArguments, IdsOutsideTheExperts) {
  for (int64_t id : {int64_t{4}, int64_t{INT_MAX}, int64_t{INT_MIN}, int64_t{-2}}) {
    const Input wrong_ids = Input(DType::kInt32, {2, 2}).fill([&](int64_t t, int64_t k) {
      return t == 1 && k == 0 ? static_cast<double>(id) : 3.0;
    });
    MoeInitRoutingArgs wrong = args;
    wrong.expert_idx = wrong_ids;
    bool untouched = false;
    EXPECT_EQ(run(wrong, untouched).message(), "expert_idx[1][0] = " + std::to_string(id) +
                                                   ": expected -1 (slot not used) or an expert in [0, 4)");
    EXPECT_TRUE(untouched);
  }
}

TEST_F(InitArguments, Outputs) {
  auto outputs = moe_init_routing_v3_outputs(args);
  ASSERT_TRUE(outputs);
  Output x_memory(outputs->expanded_x), row_memory(outputs->expanded_row_idx),
      count_memory(outputs->expert_tokens_count_or_cumsum);
  const auto message = [&](const std::function<void(MoeInitRoutingOutputs&)>& change) {
    MoeInitRoutingOutputs wrong = *outputs;
    change(wrong);
    return moe_init_routing_v3(args, wrong).message();
  };
  using Out = MoeInitRoutingOutputs;
  EXPECT_EQ(message([](Out& o) { o.expanded_x.dtype = DType::kInt8; }),
            "expanded_x has type int8: expected bfloat16");
  EXPECT_EQ(message([](Out& o) { o.expanded_x.shape[0] = 3; }),
            "expanded_x has shape (3, 8): expected (4, 8)");
  EXPECT_EQ(message([](Out& o) { o.expanded_x.strides[0] = 9; }),
            "expanded_x is not contiguous: expected contiguous memory");
  EXPECT_EQ(message([](Out& o) { o.expanded_x.layout = Layout::kFractalNz; }),
            "expanded_x has layout FRACTAL_NZ: expected ND");
  EXPECT_EQ(message([](Out& o) { o.expanded_row_idx.dtype = DType::kInt64; }),
            "expanded_row_idx has type int64: expected int32");
  EXPECT_EQ(message([](Out& o) { o.expanded_row_idx.data = nullptr; }),
            "expanded_row_idx = null: expected memory of shape (4,)");
  EXPECT_EQ(message([](Out& o) { o.expert_tokens_count_or_cumsum = {}; }),
            "expert_tokens_count_or_cumsum is missing: expected int64 (4,)");
  EXPECT_EQ(message([](Out& o) { o.expanded_scale = TensorRef(nullptr, DType::kFloat32, {4}); }),
            "expanded_scale has type float32: expected no expanded_scale with these arguments");
  EXPECT_EQ(moe_init_routing_v3(args, *outputs, {.threads = -1, .isa = std::nullopt}).message(),
            "threads = -1: expected 0 (automatic) or a number up to 4096");
  EXPECT_TRUE(x_memory.untouched() && row_memory.untouched() && count_memory.untouched());
}

TEST(PermuteArguments, EachWrongValueIsNamed) {
  const Input x(DType::kBFloat16, {2, 7}), f32(DType::kFloat32, {2, 8}), none(DType::kBFloat16, {2, 0});
  const Input ids = Input(DType::kInt32, {2, 2}).fill([](int64_t, int64_t) { return 1; });
  const Input negative =
      Input(DType::kInt32, {2, 2}).fill([](int64_t t, int64_t) { return t == 1 ? -1 : 0; });
  const Input huge =
      Input(DType::kInt64, {2}).fill([](int64_t t, int64_t) { return t == 1 ? 2147483647.0 : 0; });
  const Input long_ids(DType::kInt32, {3}), real(DType::kFloat16, {2, 2}), int16(DType::kUInt8, {2});
  MoeTokenPermuteArgs right;
  right.tokens = x;
  right.indices = ids;
  auto outputs = moe_token_permute_outputs(right);
  ASSERT_TRUE(outputs);
  Output memory[] = {Output(outputs->permuted_tokens), Output(outputs->sorted_indices),
                     Output(outputs->expanded_scale)};
  using Args = MoeTokenPermuteArgs;
  const struct {
    std::function<void(Args&)> change;
    const char* message;
  } cases[] = {
      {[&](Args& a) { a.tokens = ids; },
       "tokens has type int32: expected float32, float16, bfloat16 or int8"},
      {[&](Args& a) { a.tokens = none; }, "tokens has shape (2, 0): expected at least 1 column"},
      {[&](Args& a) { a.tokens = f32, a.quant_mode = 3; },
       "tokens has type float32: expected float16 or bfloat16"},
      {[&](Args& a) { a.quant_mode = 9; },
       "tokens has shape (2, 7): expected an even number of columns with quant_mode 9"},
      {[&](Args& a) { a.quant_mode = 1; }, "quant_mode = 1: expected one of -1, 2, 3, 9"},
      {[&](Args& a) { a.mx_scale = "floor"; }, "mx_scale = floor: expected round_up with quant_mode -1"},
      {[&](Args& a) { a.padded_mode = true; }, "padded_mode = true: expected false"},
      {[&](Args& a) { a.indices = real; }, "indices has type float16: expected int32 or int64"},
      {[&](Args& a) { a.indices = int16; }, "indices has type uint8: expected int32 or int64"},
      {[&](Args& a) { a.indices = long_ids; }, "indices has shape (3,): expected (2,)"},
      {[&](Args& a) { a.indices = negative; }, "indices[1][0] = -1: expected an index in [0, 2147483646]"},
      {[&](Args& a) { a.num_out_tokens = 3; }, "permuted_tokens has shape (4, 7): expected (3, 7)"},
  };
  for (const auto& c : cases) {
    MoeTokenPermuteArgs wrong = right;
    c.change(wrong);
    EXPECT_EQ(moe_token_permute(wrong, *outputs).message(), c.message);
    for (const Output& output : memory) EXPECT_TRUE(output.untouched()) << c.message;
  }
  right.indices = huge;
  auto two = moe_token_permute_outputs(right);
  ASSERT_TRUE(two);
  Output two_memory[] = {Output(two->permuted_tokens), Output(two->sorted_indices),
                         Output(two->expanded_scale)};
  EXPECT_EQ(moe_token_permute(right, *two).message(),
            "indices[1] = 2147483647: expected an index in [0, 2147483646]");
  EXPECT_TRUE(two_memory[1].untouched());
}

TEST(UnpermuteArguments, EachWrongValueIsNamed) {
  const Input x(DType::kBFloat16, {4, 8}), int8(DType::kInt8, {4, 8}), f32(DType::kFloat32, {2, 8});
  const Input ids = Input(DType::kInt32, {4}).fill([](int64_t i, int64_t) { return i; });
  const Input twice = Input(DType::kInt32, {4}).fill([](int64_t i, int64_t) { return i % 3; });
  const Input odd(DType::kInt32, {3}), probs(DType::kFloat32, {2, 2}), long_probs(DType::kFloat32, {3, 2});
  const Input no_slots(DType::kFloat32, {2, 0}), grad(DType::kBFloat16, {2, 8}),
      matrix(DType::kInt32, {2, 2});
  MoeTokenUnpermuteArgs right;
  right.permuted_tokens = x;
  right.sorted_indices = ids;
  right.probs = probs;
  auto outputs = moe_token_unpermute_outputs(right);
  ASSERT_TRUE(outputs);
  Output out(outputs->out);
  using Args = MoeTokenUnpermuteArgs;
  const struct {
    std::function<void(Args&)> change;
    const char* message;
  } cases[] = {
      {[&](Args& a) { a.permuted_tokens = int8; },
       "permuted_tokens has type int8: expected float32, float16 or bfloat16"},
      {[&](Args& a) { a.permuted_tokens = {}; },
       "permuted_tokens is missing: expected float32, float16 or bfloat16"},
      {[&](Args& a) { a.sorted_indices = probs; },
       "sorted_indices has type float32: expected int32 or int64"},
      {[&](Args& a) { a.sorted_indices = matrix; }, "sorted_indices has shape (2, 2): expected (*,)"},
      {[&](Args& a) { a.sorted_indices = odd; },
       "sorted_indices has shape (3,): expected a multiple of probs.shape[1] = 2"},
      {[&](Args& a) { a.probs = ids; }, "probs has type int32: expected float32, float16 or bfloat16"},
      {[&](Args& a) { a.probs = long_probs; }, "probs has shape (3, 2): expected (2, 2)"},
      {[&](Args& a) { a.probs = no_slots; }, "probs has shape (2, 0): expected at least 1 column"},
      {[&](Args& a) { a.padded_mode = true; }, "padded_mode = true: expected false"},
      {[&](Args& a) { a.probs = {}; }, "out has shape (2, 8): expected (4, 8)"},
  };
  for (const auto& c : cases) {
    MoeTokenUnpermuteArgs wrong = right;
    c.change(wrong);
    EXPECT_EQ(moe_token_unpermute(wrong, *outputs).message(), c.message);
    EXPECT_TRUE(out.untouched()) << c.message;
  }

  MoeTokenUnpermuteGradArgs back{x, grad, ids, probs, false};
  auto grads = moe_token_unpermute_grad_outputs(back);
  ASSERT_TRUE(grads);
  Output grad_memory[] = {Output(grads->permuted_grad), Output(grads->probs_grad)};
  back.sorted_indices = twice;
  EXPECT_EQ(moe_token_unpermute_grad(back, *grads).message(),
            "sorted_indices[3] = 0: expected every row at most once, sorted_indices[0] is the same");
  back.sorted_indices = ids;
  back.grad_unpermuted_tokens = f32;
  EXPECT_EQ(moe_token_unpermute_grad(back, *grads).message(),
            "grad_unpermuted_tokens has type float32: expected bfloat16");
  back.grad_unpermuted_tokens = x;
  EXPECT_EQ(moe_token_unpermute_grad(back, *grads).message(),
            "grad_unpermuted_tokens has shape (4, 8): expected (2, 8)");
  back.grad_unpermuted_tokens = grad;
  back.padded_mode = true;
  EXPECT_EQ(moe_token_unpermute_grad(back, *grads).message(), "padded_mode = true: expected false");
  EXPECT_TRUE(grad_memory[0].untouched() && grad_memory[1].untouched());

  MoeTokenPermuteGradArgs first;
  first.grad_permuted_tokens = x;
  first.sorted_indices = ids;
  first.num_topk = 3;
  EXPECT_EQ(moe_token_permute_grad_outputs(first).status().message(),
            "sorted_indices has shape (4,): expected a multiple of num_topk = 3");
  first.num_topk = 0;
  EXPECT_EQ(moe_token_permute_grad_outputs(first).status().message(), "num_topk = 0: expected 1 or more");
  first.padded_mode = true;
  EXPECT_EQ(moe_token_permute_grad_outputs(first).status().message(), "padded_mode = true: expected false");
}

TEST(GatingArguments, EachWrongValueIsNamed) {
  const Input logits = Input(DType::kFloat32, {2, 8}).fill([](int64_t, int64_t) { return 0; });
  const Input ids(DType::kInt32, {2, 8}), none(DType::kFloat32, {2, 0}), bias(DType::kFloat32, {7});
  const Input int_bias(DType::kInt32, {8});
  MoeGatingTopKArgs right;
  right.logits = logits;
  right.k = 2;
  auto outputs = moe_gating_top_k_outputs(right);
  ASSERT_TRUE(outputs);
  Output memory[] = {Output(outputs->weights), Output(outputs->ids)};
  using Args = MoeGatingTopKArgs;
  const struct {
    std::function<void(Args&)> change;
    const char* message;
  } cases[] = {
      {[&](Args& a) { a.logits = ids; }, "logits has type int32: expected float32, float16 or bfloat16"},
      {[&](Args& a) { a.logits = none; }, "logits has shape (2, 0): expected 1 to 2147483647 columns"},
      {[&](Args& a) { a.bias = int_bias; }, "bias has type int32: expected float32, float16 or bfloat16"},
      {[&](Args& a) { a.bias = bias; }, "bias has shape (7,): expected (8,)"},
      {[&](Args& a) { a.k = 0; }, "k = 0: expected 1 to 8"},
      {[&](Args& a) { a.k = 9; }, "k = 9: expected 1 to 8"},
      {[&](Args& a) { a.k = 5, a.n_group = 4, a.topk_group = 2; }, "k = 5: expected 1 to 4"},
      {[&](Args& a) { a.scoring = "relu"; }, "scoring = relu: expected softmax or sigmoid"},
      {[&](Args& a) { a.n_group = 3; }, "n_group = 3: expected a divisor of the 8 experts"},
      {[&](Args& a) { a.n_group = 0; }, "n_group = 0: expected a divisor of the 8 experts"},
      {[&](Args& a) { a.topk_group = 2; }, "topk_group = 2: expected 1 to n_group = 1"},
      {[&](Args& a) { a.group_score = "mean"; }, "group_score = mean: expected top2_sum or max"},
      {[&](Args& a) { a.group_score = std::string(5000, '-'); },
       "group_score = -----------------------------------------------------------------------------...: "
       "expected top2_sum or max"},
      {[&](Args& a) { a.routed_scaling_factor = std::nan(""); },
       "routed_scaling_factor = nan: expected a finite float32"},
      {[&](Args& a) { a.k = 1; }, "weights has shape (2, 2): expected (2, 1)"},
  };
  for (const auto& c : cases) {
    MoeGatingTopKArgs wrong = right;
    c.change(wrong);
    EXPECT_EQ(moe_gating_top_k(wrong, *outputs).message(), c.message);
    EXPECT_TRUE(memory[0].untouched() && memory[1].untouched()) << c.message;
  }
}

}  // namespace
}  // namespace megamoe::route
