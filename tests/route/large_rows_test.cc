// Rows whose offsets need more than 31 bits.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "megamoe/routing.h"

namespace megamoe::route {
namespace {

constexpr int64_t kTokens = 149797, kTopk = 2, kHidden = 7168;  // 299,594 slots, 2.1 GB

/// Tokens that overlap in memory: row t begins at byte t.
class LargeRows : public testing::Test {
 protected:
  LargeRows() : pattern_(kTokens + kHidden), ids_(kTokens * kTopk) {
    for (size_t i = 0; i < pattern_.size(); ++i)
      pattern_[i] = static_cast<int8_t>(i * 31 + i / 251 + i / 65537);
    for (size_t f = 0; f < ids_.size(); ++f) ids_[f] = static_cast<int32_t>(f * 7 % 61);
    x_ = TensorView(pattern_.data(), DType::kInt8, {kTokens, kHidden});
    x_.strides[0] = 1;
  }
  TensorView ids() const { return {ids_.data(), DType::kInt32, {kTokens, kTopk}}; }
  /// Memory for rows; not touched before they are written.
  static std::unique_ptr<int8_t[]> rows() { return std::make_unique_for_overwrite<int8_t[]>(kRowBytes); }
  void check(const int8_t* rows, const std::vector<int32_t>& index) const {
    for (int64_t f = 0; f < kTokens * kTopk; ++f) {
      const int8_t* row = rows + index[static_cast<size_t>(f)] * kHidden;
      ASSERT_EQ(std::memcmp(row, pattern_.data() + f / kTopk, kHidden), 0) << "slot " << f;
    }
  }

  static constexpr size_t kRowBytes = static_cast<size_t>(kTokens * kTopk * kHidden);
  std::vector<int8_t> pattern_;
  std::vector<int32_t> ids_;
  TensorView x_;
};

TEST_F(LargeRows, InitRouting) {
  MoeInitRoutingArgs args;
  args.x = x_;
  args.expert_idx = ids();
  args.expert_num = 61;
  auto outputs = moe_init_routing_v3_outputs(args);
  ASSERT_TRUE(outputs) << outputs.status().message();
  ASSERT_EQ(outputs->expanded_x.elements(), static_cast<int64_t>(kRowBytes));
  const auto memory = rows();
  std::vector<int32_t> index(ids_.size());
  outputs->expanded_x.data = memory.get();
  outputs->expanded_row_idx.data = index.data();
  ASSERT_TRUE(moe_init_routing_v3(args, *outputs));
  check(memory.get(), index);
}

TEST_F(LargeRows, TokenPermute) {
  MoeTokenPermuteArgs args;
  args.tokens = x_;
  args.indices = ids();
  auto outputs = moe_token_permute_outputs(args);
  ASSERT_TRUE(outputs) << outputs.status().message();
  const auto memory = rows();
  std::vector<int32_t> index(ids_.size());
  float none = 0;
  outputs->permuted_tokens.data = memory.get();
  outputs->sorted_indices.data = index.data();
  outputs->expanded_scale.data = &none;
  ASSERT_TRUE(moe_token_permute(args, *outputs));
  check(memory.get(), index);
}

}  // namespace
}  // namespace megamoe::route
