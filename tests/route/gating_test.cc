// moe_gating_top_k against the reference, and its rules for ties and values that are not numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "megamoe/reference.h"
#include "megamoe/routing.h"
#include "route/tensors.h"

namespace megamoe::route {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

template <class Run>
Choice run(const MoeGatingTopKArgs& args, Run gate) {
  auto outputs = moe_gating_top_k_outputs(args);
  EXPECT_TRUE(outputs) << outputs.status().message();
  if (!outputs) return {};
  Output weights(outputs->weights), ids(outputs->ids);
  const Status status = gate(args, *outputs);
  EXPECT_TRUE(status) << status.message();
  EXPECT_TRUE(weights.guard_intact() && ids.guard_intact());
  return {ids.values<int32_t>(), weights.values<float>()};
}

Choice fast(const MoeGatingTopKArgs& args, int threads = 1) {
  return run(args, [&](const auto& a, const auto& o) {
    return moe_gating_top_k(a, o, {.threads = threads, .isa = std::nullopt});
  });
}

void compare(const MoeGatingTopKArgs& args, int threads) {
  const Choice got = fast(args, threads);
  const Choice want =
      run(args, [](const auto& a, const auto& o) { return reference::moe_gating_top_k(a, o); });
  ASSERT_EQ(got.ids, want.ids);
  for (size_t i = 0; i < got.weights.size(); ++i) {
    ASSERT_NEAR(got.weights[i], want.weights[i], 1e-36 + 2e-6 * std::fabs(want.weights[i])) << i;
  }
}

Choice one_row(const std::vector<double>& logits, int64_t k, const char* scoring, bool renormalize = false) {
  const Input input =
      Input(DType::kFloat32, {1, static_cast<int64_t>(logits.size())}).fill([&](int64_t, int64_t e) {
        return logits[e];
      });
  MoeGatingTopKArgs args;
  args.logits = input;
  args.k = k;
  args.scoring = scoring;
  args.renormalize = renormalize;
  return fast(args);
}

TEST(Gating, LikeTheReference) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 2);
  for (int64_t tokens : {0, 1, 15, 16, 17, 255, 257}) {
    for (int64_t experts : {1, 2, 64, 65, 256}) {
      for (const char* scoring : {"softmax", "sigmoid"}) {
        const DType types[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
        const Input logits =
            Input(types[random() % 3], {tokens, experts}, random() % 2 != 0).fill([&](int64_t, int64_t) {
              return normal(random);
            });
        const Input bias =
            Input(DType::kFloat32, {experts}).fill([&](int64_t, int64_t) { return 0.1 * normal(random); });
        MoeGatingTopKArgs args;
        args.logits = logits;
        args.scoring = scoring;
        if (random() % 2 != 0) args.bias = bias;
        args.n_group = experts % 8 == 0 && random() % 2 != 0 ? 8 : 1;
        args.topk_group = args.n_group == 8 ? 3 : 1;
        const int64_t most = experts / args.n_group * args.topk_group;
        args.k = std::min<int64_t>(most, 1 + static_cast<int64_t>(random() % 8));
        args.renormalize = random() % 2 != 0;
        if (random() % 2 != 0) args.group_score = "max";
        args.routed_scaling_factor = 2.5;
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << experts << " experts, " << scoring
                                        << ", groups " << args.n_group << ", k " << args.k);
        compare(args, 1 + static_cast<int>(random() % 3));
      }
    }
  }
}

TEST(Gating, TiesGoToTheLowestExpert) {
  EXPECT_EQ(one_row({1, 2, 2, 1, 2, 2, 0}, 5, "softmax").ids, (std::vector<int32_t>{1, 2, 4, 5, 0}));
  EXPECT_EQ(one_row(std::vector<double>(70, 0.5), 3, "sigmoid").ids, (std::vector<int32_t>{0, 1, 2}));
}

TEST(Gating, BiasChoosesOnly) {
  const double logit[] = {2, 1, 0, -1};
  const Input logits = Input(DType::kFloat32, {1, 4}).fill([&](int64_t, int64_t e) { return logit[e]; });
  const Input bias = Input(DType::kBFloat16, {4}).fill([](int64_t e, int64_t) { return e == 3 ? 4 : 0; });
  MoeGatingTopKArgs args;
  args.logits = logits;
  args.bias = bias;
  args.k = 2;
  args.scoring = "sigmoid";
  const Choice choice = fast(args);
  EXPECT_EQ(choice.ids, (std::vector<int32_t>{3, 0}));
  EXPECT_NEAR(choice.weights[0], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(choice.weights[1], 1 / (1 + std::exp(-2.0)), 1e-6);
}

TEST(Gating, GroupsByTheirTwoBest) {
  // The best expert stands in group 0, but the two best of group 1 together are better.
  const double logit[] = {3, -9, -9, 2, 2, -9, -9, -9, -9};
  const Input logits = Input(DType::kFloat32, {1, 9}).fill([&](int64_t, int64_t e) { return logit[e]; });
  MoeGatingTopKArgs args;
  args.logits = logits;
  args.k = 2;
  args.scoring = "sigmoid";
  args.n_group = 3;
  EXPECT_EQ(fast(args).ids, (std::vector<int32_t>{3, 4}));
  args.group_score = "max";
  EXPECT_EQ(fast(args).ids, (std::vector<int32_t>{0, 1}));
}

TEST(Gating, GroupsByTheirBestCompareLogits) {
  // Both scores are 0 in float32: only the logits tell the groups apart.
  const double logit[] = {100, -1, -50, -60, 2, 2};
  const Input logits = Input(DType::kFloat32, {1, 6}).fill([&](int64_t, int64_t e) { return logit[e]; });
  MoeGatingTopKArgs args;
  args.logits = logits;
  args.k = 3;
  args.n_group = 3;
  args.topk_group = 2;
  args.group_score = "max";
  for (const char* scoring : {"softmax", "sigmoid"}) {
    args.scoring = scoring;
    EXPECT_EQ(fast(args).ids, (std::vector<int32_t>{0, 4, 5}));
    compare(args, 1);
  }
}

TEST(Gating, OneSlotRenormalisesToTheFactor) {
  const Input logits = Input(DType::kFloat32, {3, 5}).fill([](int64_t t, int64_t e) { return t * e * 0.1; });
  MoeGatingTopKArgs args;
  args.logits = logits;
  args.k = 1;
  args.renormalize = true;
  args.routed_scaling_factor = 1.5;
  for (const char* scoring : {"softmax", "sigmoid"}) {
    args.scoring = scoring;
    EXPECT_EQ(fast(args).weights, std::vector<float>(3, 1.5f));
  }
}

TEST(Gating, NotANumber) {
  for (const char* scoring : {"softmax", "sigmoid"}) {
    for (bool renormalize : {false, true}) {
      for (const std::vector<double>& logits :
           {std::vector<double>(20, kNan), std::vector<double>(20, -kInf), std::vector<double>(20, kInf),
            std::vector<double>{kNan, 1, kInf, -kInf, kNan, 0, kInf}, std::vector<double>{1, kNan, kNan},
            std::vector<double>{-1e30, 1e30, -3e38, 3e38}}) {
        const int64_t k = std::min<int64_t>(3, static_cast<int64_t>(logits.size()));
        const Choice choice = one_row(logits, k, scoring, renormalize);
        const std::set<int32_t> distinct(choice.ids.begin(), choice.ids.end());
        EXPECT_EQ(distinct.size(), choice.ids.size());
        for (int32_t id : choice.ids) EXPECT_TRUE(id >= 0 && id < static_cast<int32_t>(logits.size())) << id;
        for (float weight : choice.weights) EXPECT_TRUE(std::isfinite(weight)) << scoring;
      }
    }
  }
  // NaN counts as minus infinity, and infinities share everything.
  EXPECT_EQ(one_row({kNan, 1, kInf, -kInf, kNan, 0, kInf}, 5, "softmax").ids,
            (std::vector<int32_t>{2, 6, 1, 5, 0}));
  EXPECT_EQ(one_row({kNan, 1, kInf, 0, kInf}, 3, "softmax").weights, (std::vector<float>{0.5f, 0.5f, 0}));
  EXPECT_EQ(one_row({kNan, kNan}, 2, "softmax").weights, (std::vector<float>{0.5f, 0.5f}));
  EXPECT_EQ(one_row({kNan, kNan}, 2, "sigmoid", true).weights, (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace megamoe::route
