// Weights brought into the form of a profile are the same weights.
#include "cli/weight_forms.h"

#include <gtest/gtest.h>

#include <random>

#include "pack/weight_matrix.h"

namespace megamoe::cli {
namespace {

constexpr int64_t kExperts = 3;

/// An element of a list of weights as its bits.
unsigned element(const std::vector<TensorView>& list, bool k_last, int64_t e, int64_t k, int64_t n) {
  const pack::WeightMatrix matrix = pack::weight_matrix(list, k_last, e);
  const int64_t at = matrix.offset(k, n);
  const auto byte = [&](int64_t i) { return std::to_integer<unsigned>(matrix.data[i]); };
  if (dtype_bits(list[0].dtype) == 4) return byte(at / 2) >> (at % 2 * 4) & 15;
  return byte(2 * at) | byte(2 * at + 1) << 8;
}

class Bytes {
 public:
  TensorView make(DType dtype, std::initializer_list<int64_t> shape) {
    TensorView t(nullptr, dtype, shape);
    memory_.emplace_back(static_cast<size_t>(t.elements() * dtype_bits(dtype) / 8));
    for (std::byte& byte : memory_.back()) byte = static_cast<std::byte>(random_());
    t.data = memory_.back().data();
    return t;
  }

 private:
  std::mt19937 random_{5};
  std::vector<std::vector<std::byte>> memory_;
};

TEST(WeightForms, SeparateGateAndUpBecomeOneTensorForEachExpert) {
  constexpr int64_t kHidden = 6, kInner = 5;
  Bytes bytes;
  LayerJob job;
  job.config.profile = "ascend_a2_a3";
  job.weight1.k_last = job.weight2.k_last = true;
  job.weight1.weight = {bytes.make(DType::kBFloat16, {kExperts, kInner, kHidden})};
  job.weight1.up = {bytes.make(DType::kBFloat16, {kExperts, kInner, kHidden})};
  job.weight2.weight = {bytes.make(DType::kBFloat16, {kExperts, kHidden, kInner})};
  const LayerJob before = job;
  FormMemory memory;
  ASSERT_TRUE(take_profile_form(job, **moe::scenario_from_name("A16W16"), 2, memory));
  EXPECT_FALSE(job.weight1.k_last || job.weight2.k_last);
  EXPECT_TRUE(job.weight1.up.empty());
  ASSERT_EQ(job.weight1.weight.size(), 3u);
  EXPECT_EQ(job.weight1.weight[2].shape_text(), "(6, 10)");
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t k = 0; k < kHidden; ++k) {
      for (int64_t n = 0; n < 2 * kInner; ++n) {
        const bool up = n >= kInner;
        EXPECT_EQ(element(job.weight1.weight, false, e, k, n),
                  element(up ? before.weight1.up : before.weight1.weight, true, e, k, up ? n - kInner : n));
      }
    }
    for (int64_t i = 0; i < kHidden * kInner; ++i) {
      EXPECT_EQ(element(job.weight2.weight, false, e, i / kHidden, i % kHidden),
                element(before.weight2.weight, true, e, i / kHidden, i % kHidden));
    }
  }
}

TEST(WeightForms, ColumnsInTurnAreSortedIntoTheTiledLayoutsWithTheirScales) {
  constexpr int64_t kHidden = 96, kInner = 36, kRun = 2;
  Bytes bytes;
  LayerJob job;
  job.config.profile = "ascend_950";
  job.config.dispatch_quant_mode = 4;
  job.config.dispatch_quant_out_dtype = DType::kFloat4E2M1;
  job.weight1.k_last = job.weight2.k_last = true;
  job.weight1.interleave = kRun;
  job.weight1.weight = {bytes.make(DType::kFloat4E2M1, {kExperts, 2 * kInner, kHidden})};
  job.weight1.scale = {bytes.make(DType::kFloat8E8M0, {kExperts, 2 * kInner, 2, 2})};
  job.weight2.weight = {bytes.make(DType::kFloat4E2M1, {kExperts, kHidden, kInner})};
  job.weight2.scale = {bytes.make(DType::kFloat8E8M0, {kExperts, kHidden, 1, 2})};
  const LayerJob before = job;
  FormMemory memory;
  ASSERT_TRUE(take_profile_form(job, **moe::scenario_from_name("A4W4-FP"), 2, memory));
  EXPECT_EQ(job.weight1.interleave, 0);
  EXPECT_EQ(job.weight1.weight[0].layout, Layout::kFractalNz);
  EXPECT_EQ(job.weight2.weight[0].layout, Layout::kFractalNzC0_32);
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t n = 0; n < 2 * kInner; ++n) {
      const int64_t output = n % kInner;
      const int64_t from = output / kRun * 2 * kRun + (n < kInner ? 0 : kRun) + output % kRun;
      for (int64_t k = 0; k < kHidden; ++k) {
        ASSERT_EQ(element(job.weight1.weight, true, e, k, n),
                  element(before.weight1.weight, true, e, k, from));
      }
      for (int64_t g = 0; g < 3; ++g) {
        ASSERT_EQ(pack::mx_scale(job.weight1.scale, e, n, g),
                  pack::mx_scale(before.weight1.scale, e, from, g));
      }
    }
    for (int64_t i = 0; i < kHidden * kInner; ++i) {
      ASSERT_EQ(element(job.weight2.weight, true, e, i % kInner, i / kInner),
                element(before.weight2.weight, true, e, i % kInner, i / kInner));
    }
  }
}

TEST(WeightForms, WhatAProfileTakesOrNoFormHelpsStaysAsItIs) {
  Bytes bytes;
  LayerJob job;
  job.weight1.weight = {bytes.make(DType::kBFloat16, {2, 4, 6})};
  job.weight2.weight = {bytes.make(DType::kBFloat16, {2, 3, 4})};
  for (const char* profile : {"cpu", "ascend_950", "nowhere"}) {
    job.config.profile = profile;
    LayerJob after = job;
    FormMemory memory;
    ASSERT_TRUE(take_profile_form(after, **moe::scenario_from_name("A16W16"), 2, memory));
    EXPECT_TRUE(memory.empty()) << profile;
    EXPECT_EQ(after.weight1.weight[0].data, job.weight1.weight[0].data) << profile;
  }
}

}  // namespace
}  // namespace megamoe::cli
