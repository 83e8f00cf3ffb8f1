// moe_token_permute, moe_token_unpermute and their gradients against the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "megamoe/reference.h"
#include "megamoe/routing.h"
#include "route/tensors.h"

namespace megamoe::route {
namespace {

constexpr DType kReals[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

void compare(const MoeTokenPermuteArgs& args, const RoutingOptions& options) {
  auto got = moe_token_permute_outputs(args), want = moe_token_permute_outputs(args);
  ASSERT_TRUE(got) << got.status().message();
  Output rows[] = {Output(got->permuted_tokens), Output(want->permuted_tokens)};
  Output indices[] = {Output(got->sorted_indices), Output(want->sorted_indices)};
  Output scales[] = {Output(got->expanded_scale), Output(want->expanded_scale)};
  const Status status = moe_token_permute(args, *got, options);
  ASSERT_TRUE(status) << status.message();
  ASSERT_TRUE(reference::moe_token_permute(args, *want));
  expect_same(rows[0], rows[1], "permuted_tokens");
  expect_same(indices[0], indices[1], "sorted_indices");
  expect_same(scales[0], scales[1], "expanded_scale");
}

TEST(Permute, LikeTheReference) {
  std::mt19937 random(1);
  for (int64_t tokens : {0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025}) {
    for (int64_t experts : {1, 2, 64, 65, 256, 1 << 20}) {
      const bool wide = random() % 2 != 0;
      const DType types[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8};
      MoeTokenPermuteArgs args;
      const Input x = random_rows(random, types[random() % 4], tokens, 6, wide);
      const int64_t topk = 1 + static_cast<int64_t>(random() % 3);
      const bool flat = topk == 1 && random() % 2 != 0;
      const std::vector<int64_t> shape =
          flat ? std::vector<int64_t>{tokens} : std::vector<int64_t>{tokens, topk};
      const Input ids = random_ids(random, wide ? DType::kInt32 : DType::kInt64, shape, 0, experts - 1, wide);
      args.tokens = x;
      args.indices = ids;
      const int64_t slots = tokens * topk;
      const std::optional<int64_t> rows[] = {std::nullopt, 0, 5, slots + 7, -3, -slots - 9, INT64_MIN};
      args.num_out_tokens = rows[random() % 7];
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts");
      compare(args, {.threads = 2, .isa = std::nullopt});
    }
  }
}

TEST(Permute, QuantisedOnEveryLevel) {
  std::mt19937 random(2);
  for (int64_t mode : {2, 3, 9}) {
    for (DType type : {DType::kBFloat16, DType::kFloat16}) {
      const int64_t columns = mode == 9 ? 90 : 77;
      MoeTokenPermuteArgs args;
      const Input x = random_rows(random, type, 33, columns, mode == 3);
      const Input ids = random_ids(random, DType::kInt32, {33, 2}, 0, 9);
      args.tokens = x;
      args.indices = ids;
      args.quant_mode = mode;
      args.num_out_tokens = -7;
      if (type == DType::kFloat16 && mode != 9) args.mx_scale = "floor";
      for (Isa isa : runnable_levels()) compare(args, {.threads = 1, .isa = isa});
    }
  }
}

void compare(const MoeTokenUnpermuteArgs& args, const RoutingOptions& options) {
  auto got = moe_token_unpermute_outputs(args), want = moe_token_unpermute_outputs(args);
  ASSERT_TRUE(got) << got.status().message();
  Output out[] = {Output(got->out), Output(want->out)};
  const Status status = moe_token_unpermute(args, *got, options);
  ASSERT_TRUE(status) << status.message();
  ASSERT_TRUE(reference::moe_token_unpermute(args, *want));
  expect_same(out[0], out[1], "out");
}

void compare_close(const Output& got, const Output& want, double limit) {
  ASSERT_TRUE(got.guard_intact());
  const TensorRef &a = got.tensor(), &b = want.tensor();
  if (!a.present()) return;
  for (int64_t i = 0; i < a.elements(); ++i) {
    double x, y;
    if (a.dtype == DType::kFloat32) {
      x = static_cast<const float*>(a.data)[i], y = static_cast<const float*>(b.data)[i];
    } else {
      const auto decode = a.dtype == DType::kFloat16 ? format::f16_to_float : format::bf16_to_float;
      x = decode(static_cast<const uint16_t*>(a.data)[i]),
      y = decode(static_cast<const uint16_t*>(b.data)[i]);
    }
    ASSERT_NEAR(x, y, limit * (1 + std::fabs(y))) << i;
  }
}

TEST(Unpermute, LikeTheReferenceOnEveryLevel) {
  std::mt19937 random(3);
  for (DType type : kReals) {
    for (DType prob_type : kReals) {
      for (int64_t tokens : {0, 1, 17, 257}) {
        const bool wide = random() % 2 != 0;
        const int64_t topk = 1 + static_cast<int64_t>(random() % 4);
        const int64_t rows = std::max<int64_t>(1, tokens * topk - 3);
        const int64_t columns = 1 + static_cast<int64_t>(random() % 150);
        const Input x = random_rows(random, type, rows, columns, wide);
        const Input ids = random_ids(random, DType::kInt32, {tokens * topk}, -2, tokens * topk, wide);
        Input probs(prob_type, {tokens, topk}, wide);
        probs.fill([&](int64_t, int64_t) { return random() % 5 == 0 ? 0.0 : 0.001 * (random() % 1000); });
        MoeTokenUnpermuteArgs args;
        args.permuted_tokens = x;
        args.sorted_indices = ids;
        SCOPED_TRACE(testing::Message() << dtype_name(type) << " " << tokens << " x " << topk);
        for (Isa isa : runnable_levels()) compare(args, {.threads = 2, .isa = isa});
        args.probs = probs;
        for (Isa isa : runnable_levels()) compare(args, {.threads = 2, .isa = isa});
      }
    }
  }
}

// A row that no slot counts is never read: NaN behind a negative index, an index past the rows or a zero
// probability stays where it is.
TEST(Unpermute, SkippedRowsAreNotRead) {
  Input x(DType::kBFloat16, {3, 2});
  x.fill([](int64_t row, int64_t) { return row == 1 ? 2.0 : std::nan(""); });
  const double index[] = {-1, 1, 7, 0, 1, 2};
  const Input ids = Input(DType::kInt32, {6}).fill([&](int64_t i, int64_t) { return index[i]; });
  const double weight[2][3] = {{0.5, 0.5, 0.5}, {0, 0.25, 0}};
  const Input probs = Input(DType::kFloat32, {2, 3}).fill([&](int64_t t, int64_t k) { return weight[t][k]; });
  MoeTokenUnpermuteArgs args;
  args.permuted_tokens = x;
  args.sorted_indices = ids;
  args.probs = probs;
  auto outputs = moe_token_unpermute_outputs(args);
  ASSERT_TRUE(outputs);
  Output out(outputs->out);
  ASSERT_TRUE(moe_token_unpermute(args, *outputs));
  EXPECT_EQ(out.values<uint16_t>(), (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f00, 0x3f00}));
}

TEST(Unpermute, SignOfZero) {
  const Input x = Input(DType::kFloat32, {1, 1}).fill([](int64_t, int64_t) { return -0.0; });
  const Input ids = Input(DType::kInt32, {1}).fill([](int64_t, int64_t) { return 0; });
  const Input one = Input(DType::kFloat32, {1, 1}).fill([](int64_t, int64_t) { return 1; });
  MoeTokenUnpermuteArgs args;
  args.permuted_tokens = x;
  args.sorted_indices = ids;
  for (bool weighted : {false, true}) {
    if (weighted) args.probs = one;
    auto outputs = moe_token_unpermute_outputs(args);
    ASSERT_TRUE(outputs);
    Output out(outputs->out);
    ASSERT_TRUE(moe_token_unpermute(args, *outputs));
    EXPECT_EQ(std::signbit(out.values<float>()[0]), !weighted);
  }
}

// One slot per token and a scaling of 1.5: nothing but 1.5 times the row, and no poison.
TEST(Unpermute, RoundTripWithOneSlot) {
  std::mt19937 random(4);
  const Input x = Input(DType::kFloat32, {40, 5}).fill([](int64_t t, int64_t h) { return t * 5 + h; });
  const Input ids = random_ids(random, DType::kInt64, {40}, 0, 6);
  MoeTokenPermuteArgs args;
  args.tokens = x;
  args.indices = ids;
  auto permuted = moe_token_permute_outputs(args);
  ASSERT_TRUE(permuted);
  Output rows(permuted->permuted_tokens), indices(permuted->sorted_indices), scale(permuted->expanded_scale);
  ASSERT_TRUE(moe_token_permute(args, *permuted));
  const Input probs = Input(DType::kFloat32, {40, 1}).fill([](int64_t, int64_t) { return 1.5; });
  MoeTokenUnpermuteArgs back;
  back.permuted_tokens = view(permuted->permuted_tokens);
  back.sorted_indices = view(permuted->sorted_indices);
  back.probs = probs;
  auto outputs = moe_token_unpermute_outputs(back);
  ASSERT_TRUE(outputs);
  Output out(outputs->out);
  ASSERT_TRUE(moe_token_unpermute(back, *outputs));
  const std::vector<float> values = out.values<float>();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(values[i], 1.5f * static_cast<float>(i));
}

TEST(PermuteGrad, LikeTheReferenceOnEveryLevel) {
  std::mt19937 random(5);
  for (DType type : kReals) {
    for (int64_t topk : {1, 3}) {
      const Input grad = random_rows(random, type, 40, 37, topk == 3);
      const Input ids = random_ids(random, DType::kInt32, {20 * topk}, -1, 45);
      MoeTokenPermuteGradArgs args;
      args.grad_permuted_tokens = grad;
      args.sorted_indices = ids;
      args.num_topk = topk;
      for (Isa isa : runnable_levels()) {
        auto got = moe_token_permute_grad_outputs(args), want = moe_token_permute_grad_outputs(args);
        ASSERT_TRUE(got);
        Output out[] = {Output(got->grad_tokens), Output(want->grad_tokens)};
        ASSERT_TRUE(moe_token_permute_grad(args, *got, {.threads = 1, .isa = isa}));
        ASSERT_TRUE(reference::moe_token_permute_grad(args, *want));
        expect_same(out[0], out[1], "grad_tokens");
      }
    }
  }
}

TEST(UnpermuteGrad, LikeTheReferenceOnEveryLevel) {
  std::mt19937 random(6);
  for (DType type : kReals) {
    for (bool weighted : {false, true}) {
      for (int64_t tokens : {0, 1, 30}) {
        const int64_t topk = weighted ? 3 : 1, slots = tokens * topk;
        // Every third slot was dropped, so some rows belong to no slot.
        const Input ids = Input(DType::kInt64, {slots}).fill([&](int64_t i, int64_t) {
          return i % 3 == 1 ? -1 : static_cast<int64_t>(i * 7 % std::max<int64_t>(1, slots));
        });
        std::normal_distribution<double> normal;
        const auto make = [&](int64_t, int64_t) { return normal(random); };
        const Input x = Input(type, {slots + 2, 51}, weighted).fill(make);
        const Input grad = Input(type, {tokens, 51}, weighted).fill(make);
        const Input probs = Input(type, {tokens, topk}, true).fill(make);
        MoeTokenUnpermuteGradArgs args;
        args.permuted_tokens = x;
        args.grad_unpermuted_tokens = grad;
        args.sorted_indices = ids;
        if (weighted) args.probs = probs;
        for (Isa isa : runnable_levels()) {
          auto got = moe_token_unpermute_grad_outputs(args), want = moe_token_unpermute_grad_outputs(args);
          ASSERT_TRUE(got) << got.status().message();
          Output rows[] = {Output(got->permuted_grad), Output(want->permuted_grad)};
          Output sums[] = {Output(got->probs_grad), Output(want->probs_grad)};
          const Status status = moe_token_unpermute_grad(args, *got, {.threads = 2, .isa = isa});
          ASSERT_TRUE(status) << status.message();
          ASSERT_TRUE(reference::moe_token_unpermute_grad(args, *want));
          expect_same(rows[0], rows[1], "permuted_grad");
          compare_close(sums[0], sums[1], type == DType::kFloat32 ? 1e-5 : 0.02);
        }
      }
    }
  }
}

}  // namespace
}  // namespace megamoe::route
