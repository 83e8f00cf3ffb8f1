// Tensors of a call that are views of others: strided, reversed, transposed, in place.
#include <gtest/gtest.h>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::RankTokens;
using test::TestLayer;

constexpr int64_t kTokens = 9, kHidden = 34, kTopk = 3, kExperts = 5;

class Strides : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto made = SymmBuffer::create(Group::self(), layer_.config(kTokens), test::options(2));
    ASSERT_TRUE(made) << made.status().message();
    auto op = MegaMoe::create(*made, layer_.layer(1, 0, true));
    ASSERT_TRUE(op) << op.status().message();
    op_ = std::move(*op);
    tokens_ = layer_.tokens(kTokens);
    tokens_.active = {1, 1, 0, 1, 1, 1, 0, 1, 1};
    plain_ = run(layer_.args(tokens_, kExperts));
  }

  // y after a call, in the order of its elements.
  std::vector<uint16_t> run(const CallArgs& args) {
    const Status status = op_->run(args);
    EXPECT_TRUE(status) << status.message();
    std::vector<uint16_t> y;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t h = 0; h < kHidden; ++h) {
        y.push_back(static_cast<uint16_t*>(args.y.data)[t * args.y.strides[0] + h * args.y.strides[1]]);
      }
    }
    return y;
  }

  // The same elements in other places: strides in elements, `first` is where element (0, 0) stands.
  template <class T, class Tensor>
  void place(Tensor& tensor, std::vector<T>& memory, int64_t first, int64_t row, int64_t column) {
    const Tensor from = tensor;
    tensor.data = memory.data() + first;
    tensor.strides[0] = row;
    tensor.strides[1] = column;
    const int64_t columns = from.dims == 2 ? from.shape[1] : 1;
    for (int64_t r = 0; r < from.shape[0]; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        memory[static_cast<size_t>(first + r * row + c * column)] =
            static_cast<const T*>(from.data)[r * from.strides[0] + c * from.strides[1]];
      }
    }
  }

  TestLayer layer_{{kHidden, 18, kExperts, kTopk, GetParam(), "swiglu"}, 9};
  std::unique_ptr<MegaMoe> op_;
  RankTokens tokens_;
  std::vector<uint16_t> plain_;
};

TEST_P(Strides, EveryTensorMayBeAView) {
  std::vector<uint16_t> x(4096, 0x7fff), y(4096);
  std::vector<int32_t> ids(4096, 99), counts(64);
  std::vector<float> weights(4096, 1e30f);
  std::vector<int8_t> active(64, 1);
  struct Form {
    const char* name;
    int64_t row, column, first;  // of x and y; ids and weights follow
  };
  const Form forms[] = {{"padded rows", 50, 1, 3},
                        {"every second", 80, 2, 0},
                        {"transposed", 1, 11, 2},
                        {"reversed rows", -40, 1, 40 * 8},
                        {"reversed columns", 40, -1, 33}};
  for (const Form& form : forms) {
    CallArgs args = layer_.args(tokens_, kExperts);
    place(args.x, x, form.first, form.row, form.column);
    place(args.y, y, form.first, form.row, form.column);
    place(args.topk_ids, ids, 200, -7, 2);
    place(args.topk_weights, weights, 0, 1, 10);
    place(args.x_active_mask, active, 20, -2, 1);
    place(args.expert_token_nums, counts, 12, -3, 1);
    EXPECT_EQ(run(args), plain_) << form.name;
    for (int64_t e = 0; e < kExperts; ++e) {
      EXPECT_EQ(counts[static_cast<size_t>(12 - 3 * e)], tokens_.counts[static_cast<size_t>(e)]) << form.name;
    }
  }
}

// The row of a token is read before its result is written.
TEST_P(Strides, ResultsMayTakeThePlaceOfTheTokens) {
  CallArgs args = layer_.args(tokens_, kExperts);
  args.y.data = tokens_.x.data();
  EXPECT_EQ(run(args), plain_);
}

TEST_P(Strides, SideBySideInOneMatrix) {
  std::vector<uint16_t> both(kTokens * 2 * kHidden);
  CallArgs args = layer_.args(tokens_, kExperts);
  place(args.x, both, 0, 2 * kHidden, 1);
  place(args.y, both, kHidden, 2 * kHidden, 1);
  EXPECT_EQ(run(args), plain_);
}

TEST_P(Strides, OverlapsAreErrors) {
  std::vector<uint16_t> memory(8 * kTokens * kHidden);
  const auto message = [&](const CallArgs& args) { return op_->run(args).message(); };
  CallArgs args = layer_.args(tokens_, kExperts);
  args.x.data = memory.data();
  args.y.data = memory.data() + 1;
  EXPECT_EQ(message(args), "y overlaps x: expected memory of its own, or that of x itself");
  args.y.data = memory.data() + kHidden;
  EXPECT_EQ(message(args), "y overlaps x: expected memory of its own, or that of x itself");
  args = layer_.args(tokens_, kExperts);
  args.y.strides[0] = 0;
  EXPECT_EQ(message(args), "y has strides (0, 1): expected elements that do not overlap");
  args.y.strides[0] = kHidden - 1;
  EXPECT_EQ(message(args), "y has strides (33, 1): expected elements that do not overlap");
  args.y.strides[0] = 1;
  args.y.strides[1] = -(kTokens - 1);
  EXPECT_EQ(message(args), "y has strides (1, -8): expected elements that do not overlap");
  args = layer_.args(tokens_, kExperts);
  EXPECT_EQ(run(args), plain_) << "the next call works";
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Strides, testing::Values("A16W16", "A8W8-INT", "A4W4-FP"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megamoe
