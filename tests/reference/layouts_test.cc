// Every accepted layout of inputs and weights gives the same bits.
#include <gtest/gtest.h>

#include <functional>

#include "format/fractal.h"
#include "world.h"

namespace megamoe::reference {
namespace {

/// Storage for rearranged copies that outlives the call.
struct Copies {
  std::vector<std::vector<std::byte>> memory;
  template <class T>
  T* make(size_t count) {
    memory.emplace_back(count * sizeof(T), std::byte{0x7f});  // gaps hold garbage
    return reinterpret_cast<T*>(memory.back().data());
  }
};

template <class T>
const T& at(const TensorView& t, int64_t e, int64_t r, int64_t c) {
  return static_cast<const T*>(t.data)[(e * t.shape[1] + r) * t.shape[2] + c];
}

template <class T>
TensorView rearranged(const TensorView& t, Copies& copies, const std::string& how) {
  const int64_t experts = t.shape[0];
  const int64_t k = t.shape[1];
  const int64_t n = t.shape[2];
  TensorView out = t;
  std::function<int64_t(int64_t, int64_t, int64_t)> place;
  int64_t size = 0;
  if (how == "k_last") {
    out = TensorView(nullptr, t.dtype, {experts, n, k});
    place = [=](int64_t e, int64_t r, int64_t c) { return (e * n + c) * k + r; };
    size = experts * k * n;
  } else if (how == "k_last_nz") {
    const format::Fractal fractal{n, k, format::fractal_c0(t.dtype, Layout::kFractalNz)};
    out = TensorView(nullptr, t.dtype, {experts, n, k}, Layout::kFractalNz);
    place = [=](int64_t e, int64_t r, int64_t c) { return e * fractal.elements() + fractal.offset(c, r); };
    size = experts * fractal.elements();
  } else if (how == "nz") {
    const format::Fractal fractal{k, n, format::fractal_c0(t.dtype, Layout::kFractalNz)};
    out.layout = Layout::kFractalNz;
    place = [=](int64_t e, int64_t r, int64_t c) { return e * fractal.elements() + fractal.offset(r, c); };
    size = experts * fractal.elements();
  } else {  // strided: a transposed view with gaps
    out.strides[0] = 2 * k * n + 5;
    out.strides[1] = 2;
    out.strides[2] = 2 * k;
    place = [=](int64_t e, int64_t r, int64_t c) { return e * (2 * k * n + 5) + 2 * r + 2 * k * c; };
    size = experts * (2 * k * n + 5);
  }
  T* data = copies.make<T>(static_cast<size_t>(size));
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = 0; r < k; ++r) {
      for (int64_t c = 0; c < n; ++c) data[place(e, r, c)] = at<T>(t, e, r, c);
    }
  }
  out.data = data;
  return out;
}

TensorView rearranged(bool int8, const TensorView& t, Copies& copies, const std::string& how) {
  return int8 ? rearranged<int8_t>(t, copies, how) : rearranged<uint16_t>(t, copies, how);
}

/// Columns [first, first + n) of a tensor, as a view with strides.
TensorView columns(const TensorView& t, int64_t first, int64_t n) {
  TensorView view = t;
  view.data = static_cast<const char*>(t.data) + first * dtype_bits(t.dtype) / 8;
  view.shape[2] = n;
  return view;
}

/// Expert e of a stacked tensor.
TensorView expert(const TensorView& t, int64_t e) {
  TensorView view;
  view.data = static_cast<const char*>(t.data) + e * t.strides[0] * dtype_bits(t.dtype) / 8;
  view.dtype = t.dtype;
  view.dims = t.dims - 1;
  for (int i = 0; i < view.dims; ++i) {
    view.shape[i] = t.shape[i + 1];
    view.strides[i] = t.strides[i + 1];
  }
  return view;
}

class Layouts : public testing::TestWithParam<bool> {
 protected:
  Layouts() : world(GetParam(), {5, 3}, 6, 2, 37, 19) {
    EXPECT_TRUE(world.run());
    for (const RankData& rank : world.ranks) expected.push_back(rank.y);
  }
  void expect_same(std::vector<RankInput>& inputs, const std::string& how) {
    const Status status = mega_moe(world.config, world.activation, inputs);
    ASSERT_TRUE(status) << how << ": " << status.message();
    for (size_t r = 0; r < expected.size(); ++r) EXPECT_EQ(world.ranks[r].y, expected[r]) << how;
  }
  World world;
  std::vector<std::vector<uint16_t>> expected;
  Copies copies;
};
INSTANTIATE_TEST_SUITE_P(Scenario, Layouts, testing::Bool(),
                         [](const auto& info) { return info.param ? "A8W8Int" : "A16W16"; });

TEST_P(Layouts, OfWeights) {
  for (const std::string how : {"k_last", "k_last_nz", "nz", "strided"}) {
    std::vector<RankInput> inputs = world.inputs();
    for (RankInput& in : inputs) {
      for (LinearWeights* weights : {&in.weight1, &in.weight2}) {
        weights->weight = {rearranged(GetParam(), weights->weight[0], copies, how)};
        weights->k_last = how.rfind("k_last", 0) == 0;
      }
    }
    expect_same(inputs, how);
  }
}

TEST_P(Layouts, OneTensorPerExpert) {
  std::vector<RankInput> inputs = world.inputs();
  for (RankInput& in : inputs) {
    for (LinearWeights* weights : {&in.weight1, &in.weight2}) {
      const LinearWeights stacked = *weights;
      weights->weight.clear();
      weights->scale.clear();
      for (int64_t e = 0; e < world.local_experts(); ++e) {
        weights->weight.push_back(expert(stacked.weight[0], e));
        if (!stacked.scale.empty()) weights->scale.push_back(expert(stacked.scale[0], e));
      }
    }
  }
  expect_same(inputs, "list");
}

TEST_P(Layouts, GateAndUpApart) {
  std::vector<RankInput> inputs = world.inputs();
  for (RankInput& in : inputs) {
    const TensorView both = in.weight1.weight[0];
    in.weight1.weight = {columns(both, 0, world.width)};
    in.weight1.up = {columns(both, world.width, world.width)};
  }
  expect_same(inputs, "gate and up apart");
}

TEST_P(Layouts, ScalesInTheLowerHalfOfUint64) {
  if (!GetParam()) return;
  std::vector<RankInput> inputs = world.inputs();
  for (RankInput& in : inputs) {
    for (LinearWeights* weights : {&in.weight1, &in.weight2}) {
      const TensorView scale = weights->scale[0];
      uint64_t* wide = copies.make<uint64_t>(static_cast<size_t>(scale.elements()));
      for (int64_t i = 0; i < scale.elements(); ++i) {
        wide[i] = std::bit_cast<uint32_t>(static_cast<const float*>(scale.data)[i]) | uint64_t{0xdead4000}
                                                                                          << 32;
      }
      weights->scale = {TensorView(wide, DType::kUInt64, {scale.shape[0], scale.shape[1]})};
    }
  }
  expect_same(inputs, "uint64 scales");
}

TEST_P(Layouts, OfTokens) {
  for (RankData& rank : world.ranks) {
    for (float& w : rank.weights) w = format::bf16_to_float(format::bf16_from_float(w));
  }
  ASSERT_TRUE(world.run());
  for (size_t r = 0; r < expected.size(); ++r) expected[r] = world.ranks[r].y;

  std::vector<RankInput> inputs = world.inputs();
  for (size_t r = 0; r < inputs.size(); ++r) {
    const RankData& rank = world.ranks[r];
    CallArgs& call = inputs[r].call;
    const int64_t wide = world.hidden + 3;
    uint16_t* x = copies.make<uint16_t>(static_cast<size_t>(rank.tokens * wide));
    for (int64_t i = 0; i < rank.tokens * world.hidden; ++i) {
      x[i / world.hidden * wide + i % world.hidden] = rank.x[i];
    }
    call.x.data = x;
    call.x.strides[0] = wide;
    // ids transposed in int64, weights in bfloat16 two apart
    int64_t* ids = copies.make<int64_t>(rank.ids.size());
    uint16_t* weights = copies.make<uint16_t>(2 * rank.weights.size());
    for (int64_t t = 0; t < rank.tokens; ++t) {
      for (int64_t k = 0; k < world.topk; ++k) {
        ids[k * rank.tokens + t] = rank.ids[t * world.topk + k];
        weights[2 * (t * world.topk + k)] = format::bf16_from_float(rank.weights[t * world.topk + k]);
      }
    }
    call.topk_ids = TensorView(ids, DType::kInt64, {rank.tokens, world.topk});
    call.topk_ids.strides[0] = 1;
    call.topk_ids.strides[1] = rank.tokens;
    call.topk_weights = TensorView(weights, DType::kBFloat16, {rank.tokens, world.topk});
    call.topk_weights.strides[0] = 2 * world.topk;
    call.topk_weights.strides[1] = 2;
  }
  expect_same(inputs, "strided tokens");
}

}  // namespace
}  // namespace megamoe::reference
