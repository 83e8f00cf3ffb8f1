// Every scenario: layouts of its weights, coded tokens, biases, ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "reference/number.h"
#include "scenario_world.h"

namespace megamoe::reference {
namespace {

float bf16(float v) {
  return format::bf16_to_float(format::bf16_from_float(v));
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{got[i]} - double{want[i]}, 2);
    size += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(difference / size);
}

class Scenarios : public testing::TestWithParam<ScenarioTypes> {};
INSTANTIATE_TEST_SUITE_P(All, Scenarios, testing::ValuesIn(kAllScenarios),
                         [](const auto& info) { return info.param.name; });

/// Weights (E, R, C) in another order of the last two dimensions, or another layout.
Storage rearranged(const Storage& from, bool transpose, Layout layout) {
  const int64_t experts = from.ref.shape[0];
  const int64_t rows = from.ref.shape[transpose ? 2 : 1];
  const int64_t cols = from.ref.shape[transpose ? 1 : 2];
  const DType dtype = from.ref.dtype;
  const format::Fractal fractal{rows, cols, format::fractal_c0(dtype, layout)};
  const int64_t matrix = layout == Layout::kNd ? rows * cols : fractal.elements();
  Storage to = make_storage(dtype, {experts, rows, cols}, experts * matrix);
  to.ref.layout = layout;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t at = layout == Layout::kNd ? r * cols + c : fractal.offset(r, c);
        const int64_t source = e * rows * cols + (transpose ? c * rows + r : r * cols + c);
        put_bits(to.ref.data, dtype, e * matrix + at, get_bits(from.ref.data, dtype, source));
      }
    }
  }
  to.ref.strides[0] = matrix;
  return to;
}

/// The same tensor with entry i of a dimension taken from entry order[i].
Storage reordered(const Storage& from, int dim, const std::vector<int64_t>& order) {
  Storage to = from;
  to.bytes = std::make_shared<std::vector<std::byte>>(*from.bytes);
  to.ref.data = to.bytes->data();
  const int64_t inner = from.ref.strides[dim], extent = from.ref.shape[dim];
  const int64_t outer = from.ref.elements() / (inner * extent);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t c = 0; c < extent; ++c) {
      for (int64_t i = 0; i < inner; ++i) {
        put_bits(to.ref.data, from.ref.dtype, (o * extent + c) * inner + i,
                 get_bits(from.ref.data, from.ref.dtype, (o * extent + order[c]) * inner + i));
      }
    }
  }
  return to;
}

// Columns g0 u0 g1 u1 ..., or in longer runs, with their scales and biases.
TEST_P(Scenarios, GateAndUpColumnsInTurn) {
  ScenarioWorld w(GetParam(), {5, 3}, 4, 2);
  w.layer1.bias = ScenarioWorld::make_bias(4, 2 * w.width, w.random);
  ASSERT_TRUE(w.run());
  const std::vector<float> y = w.y();
  const LayerData halves = w.layer1;
  EXPECT_EQ(w.width, 40);
  for (const int64_t together : {1, 8, 40}) {
    std::vector<int64_t> order;
    for (int64_t first = 0; first < 40; first += together) {
      for (int64_t c = first; c < first + together; ++c) order.push_back(c);
      for (int64_t c = first; c < first + together; ++c) order.push_back(40 + c);
    }
    w.layer1.weight = reordered(halves.weight, halves.k_last ? 1 : 2, order);
    w.layer1.bias = reordered(halves.bias, 1, order);
    if (halves.scale.bytes) w.layer1.scale = reordered(halves.scale, 1, order);
    w.layer1.interleave = together;
    const Status status = w.run();
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(w.y(), y) << together;
  }
  w.layer1.interleave = 3;
  EXPECT_EQ(w.run().message(),
            "rank 0: weight1_interleave = 3: expected 0 or a divisor of 40, the gate columns");
  w.layer1.interleave = 0;
  w.layer2.interleave = 1;
  EXPECT_EQ(w.run().message(), "rank 0: weight2_interleave = 1: expected 0 without gate and up columns");
}

TEST_P(Scenarios, LayoutsOfWeights) {
  ScenarioWorld w(GetParam(), {5, 3}, 4, 2);
  ASSERT_TRUE(w.run());
  const std::vector<float> y = w.y();
  for (float v : y) ASSERT_TRUE(std::isfinite(v));
  const LayerData layer1 = w.layer1, layer2 = w.layer2;
  for (const bool transpose : {false, true}) {
    for (const Layout layout : {Layout::kNd, Layout::kFractalNz, Layout::kFractalNzC0_32}) {
      if (layout == Layout::kFractalNzC0_32 && GetParam().weight != DType::kFloat4E2M1) continue;
      w.layer1.weight = rearranged(layer1.weight, transpose, layout);
      w.layer2.weight = rearranged(layer2.weight, transpose, layout);
      w.layer1.k_last = w.layer2.k_last = layer1.k_last != transpose;
      const Status status = w.run();
      ASSERT_TRUE(status) << status.message();
      EXPECT_EQ(w.y(), y) << layout_name(layout) << transpose;
      if (GetParam().weight != DType::kInt4) continue;
      for (LayerData* layer : {&w.layer1, &w.layer2}) {  // the same bytes as words
        layer->weight.ref.dtype = DType::kInt32;
        layer->weight.ref.shape[2] /= 8;
        layer->weight.ref.strides[0] /= 8;
        layer->weight.ref.strides[1] /= 8;
      }
      const Status words = w.run();
      ASSERT_TRUE(words) << words.message();
      EXPECT_EQ(w.y(), y) << "int32 in " << layout_name(layout) << transpose;
    }
  }
}

TEST_P(Scenarios, OneTensorPerExpertWithBiases) {
  ScenarioWorld w(GetParam(), {5, 3}, 4, 2);
  w.layer1.bias = w.make_bias(4, 80, w.random);
  w.layer2.bias = w.make_bias(4, 72, w.random);
  ASSERT_TRUE(w.run());
  const std::vector<float> y = w.y();
  std::vector<RankInput> inputs = w.inputs();
  for (RankInput& in : inputs) {
    for (LinearWeights* weights : {&in.weight1, &in.weight2}) {
      for (std::vector<TensorView>* list : {&weights->weight, &weights->scale, &weights->bias}) {
        if (list->empty()) continue;
        const TensorView stacked = list->front();
        list->clear();
        for (int64_t e = 0; e < stacked.shape[0]; ++e) {
          TensorView one = stacked;
          one.data =
              static_cast<const char*>(stacked.data) + e * stacked.strides[0] * dtype_bits(stacked.dtype) / 8;
          one.dims = stacked.dims - 1;
          std::copy(stacked.shape + 1, stacked.shape + kMaxDims, one.shape);
          std::copy(stacked.strides + 1, stacked.strides + kMaxDims, one.strides);
          list->push_back(one);
        }
      }
    }
  }
  const Status status = mega_moe(w.config, w.activation, inputs);
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(w.y(), y);
}

TEST_P(Scenarios, GateAndUpApart) {
  ScenarioWorld w(GetParam(), {4}, 2, 2);
  ASSERT_TRUE(w.run());
  const std::vector<float> y = w.y();
  std::vector<RankInput> inputs = w.inputs();
  LinearWeights& weights = inputs[0].weight1;
  const int n_dim = weights.k_last ? 1 : 2;
  TensorView gate = weights.weight[0];
  gate.shape[n_dim] = w.width;
  TensorView up = gate;
  up.data = static_cast<const char*>(gate.data) + w.width * gate.strides[n_dim] * dtype_bits(gate.dtype) / 8;
  weights.weight = {gate};
  weights.up = {up};
  const Status status = mega_moe(w.config, w.activation, inputs);
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(w.y(), y);
}

TEST_P(Scenarios, RanksWithFewerOrNoExperts) {
  ScenarioWorld one(GetParam(), {11}, 5, 3);
  ASSERT_TRUE(one.run());
  ScenarioWorld four(GetParam(), {4, 0, 6, 1}, 5, 3);  // 2 + 2 + 1 + 0 experts
  four.layer1 = one.layer1;
  four.layer2 = one.layer2;
  int64_t first = 0;
  for (TokenData& rank : four.ranks) {
    rank.x.ref.data = const_cast<void*>(one.ranks[0].x.part(first, rank.tokens).data);
    rank.ids.ref.data = const_cast<void*>(one.ranks[0].ids.part(first, rank.tokens).data);
    rank.weights.ref.data = const_cast<void*>(one.ranks[0].weights.part(first, rank.tokens).data);
    first += rank.tokens;
  }
  const Status status = four.run();
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(four.y(), one.y());
  EXPECT_EQ(four.counts(), one.counts());
  EXPECT_EQ(four.ranks[3].counts.ref.shape[0], 0);
}

// Without weights the rows are the biases; the router weight applies to them wherever it is applied.
TEST_P(Scenarios, BiasesBelongToTheExpertsOutput) {
  if (GetParam().weight == DType::kInt4) return;  // its bias stands for a part of the product
  for (const int early : {0, 1}) {
    ScenarioWorld w(GetParam(), {1}, 1, 1);
    w.config.topk_weights_type = early;
    for (LayerData* layer : {&w.layer1, &w.layer2}) {
      std::fill(layer->weight.bytes->begin(), layer->weight.bytes->end(), std::byte{0});
    }
    w.layer1.bias = w.make_bias(1, 80, w.random);
    w.layer2.bias = w.make_bias(1, 72, w.random);
    ASSERT_TRUE(w.run());
    const bool rounds = GetParam().token != DType::kInt8;
    const auto* bias1 = static_cast<const float*>(w.layer1.bias.ref.data);
    for (int n = 0; n < 80; ++n) {
      EXPECT_EQ(w.stages[0].linear1[n], rounds ? bf16(bias1[n]) : bias1[n]) << n;
    }
    const auto* bias2 = static_cast<const float*>(w.layer2.bias.ref.data);
    const float weight = w.weights(w.ranks[0])[0];
    for (int h = 0; h < 72; ++h) {
      const float row = bf16(early ? bias2[h] * weight : bias2[h]);
      EXPECT_EQ(w.stages[0].linear2[h], row) << h;
      EXPECT_EQ(w.y()[h], early ? row : bf16(row * weight)) << h;
    }
  }
}

// Early weights scale the activated row; without requantisation in the way the result is nearly the same.
TEST_P(Scenarios, EarlyWeights) {
  ScenarioWorld w(GetParam(), {6}, 3, 2);
  ASSERT_TRUE(w.run());
  const std::vector<float> late = w.y();
  const std::vector<float> activated = w.stages[0].activated;
  const std::vector<int64_t> home = w.stages[0].home;
  w.config.topk_weights_type = 1;
  ASSERT_TRUE(w.run());
  EXPECT_LT(relative_error(w.y(), late), 0.1);
  EXPECT_NE(w.y(), late);
  if (GetParam().token != DType::kInt8) return;
  for (size_t i = 0; i < activated.size(); ++i) {
    const size_t row = i / static_cast<size_t>(w.width);
    const float weight = w.weights(w.ranks[0])[home[3 * row + 1] * 2 + home[3 * row + 2]];
    EXPECT_EQ(w.stages[0].activated[i], activated[i] * weight);
  }
}

// x given as the codes that dispatch makes gives the same y.
TEST_P(Scenarios, TokensGivenAsCodes) {
  if (!ScenarioWorld::is_mx(GetParam().token)) return;
  ScenarioWorld w(GetParam(), {7}, 3, 2, 96);
  ASSERT_TRUE(w.run());
  const std::vector<float> y = w.y();
  const Stages stages = w.stages[0];
  const DType type = GetParam().token;
  std::map<float, uint64_t> codes;
  for (int code = 255; code >= 0; --code) {
    const uint8_t byte = static_cast<uint8_t>(code & ((1 << dtype_bits(type)) - 1));
    const float value = read_number(TensorView(&byte, type, {1}), 0);
    if (!std::isnan(value)) codes[value] = byte;
  }
  TokenData& rank = w.ranks[0];
  rank.x = make_storage(type, {7, 96});
  rank.scales = make_storage(DType::kFloat8E8M0, {7, 3});
  for (size_t row = 0; row < stages.home.size() / 3; ++row) {
    const int64_t token = stages.home[3 * row + 1];
    for (int64_t h = 0; h < 96; ++h) {
      put_bits(rank.x.ref.data, type, token * 96 + h,
               codes.at(stages.token_codes[row * 96 + static_cast<size_t>(h)]));
    }
    for (int64_t g = 0; g < 3; ++g) {
      const float scale = stages.token_scales[row * 3 + static_cast<size_t>(g)];
      put_bits(rank.scales.ref.data, DType::kFloat8E8M0, token * 3 + g,
               static_cast<uint64_t>(std::ilogb(scale) + 127));
    }
  }
  w.config.dispatch_quant_mode = 0;
  const Status status = w.run();
  ASSERT_TRUE(status) << status.message();
  EXPECT_EQ(w.y(), y);
  EXPECT_EQ(w.stages[0].token_codes, stages.token_codes);
}

// The bias of the recipe, 8 * sum(w) * scale, is what the split of the codes leaves out.
TEST(A8W4Int, CompensationEqualsThePlainProduct) {
  ScenarioWorld w(kA8W4Int, {6}, 3, 2);
  ASSERT_TRUE(w.run());
  const std::vector<float> plain = w.y();
  const auto recipe = [&](const LayerData& layer) {
    const int64_t k = layer.weight.ref.shape[1], n = layer.weight.ref.shape[2];
    Storage bias = make_storage(DType::kFloat32, {3, n});
    for (int64_t e = 0; e < 3; ++e) {
      for (int64_t j = 0; j < n; ++j) {
        int sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          const int code =
              static_cast<int>(get_bits(layer.weight.ref.data, DType::kInt4, (e * k + i) * n + j));
          sum += code < 8 ? code : code - 16;
        }
        static_cast<float*>(bias.ref.data)[e * n + j] =
            8 * static_cast<float>(sum) * static_cast<const float*>(layer.scale.ref.data)[e * n + j];
      }
    }
    return bias;
  };
  w.layer1.bias = recipe(w.layer1);
  w.layer2.bias = recipe(w.layer2);
  ASSERT_TRUE(w.run());
  EXPECT_LT(relative_error(w.y(), plain), 2e-3);
}

TEST(A8W4Int, EveryCodePairIsExact) {
  // One token whose codes run over the range, against every weight.
  ScenarioWorld w(kA8W4Int, {1}, 1, 1, 16, 8);
  for (int h = 0; h < 16; ++h) {
    const float v = h == 0 ? 127.0f : static_cast<float>(h * 17 - 135);
    put_bits(w.ranks[0].x.ref.data, DType::kBFloat16, h, format::bf16_from_float(v));
  }
  for (int k = 0; k < 16; ++k) {
    for (int n = 0; n < 16; ++n) put_bits(w.layer1.weight.ref.data, DType::kInt4, k * 16 + n, (k + n) % 16);
  }
  std::fill_n(static_cast<float*>(w.layer1.scale.ref.data), 16, 1.0f);
  ASSERT_TRUE(w.run());
  ASSERT_EQ(w.stages[0].token_scales, std::vector<float>{1});
  for (int n = 0; n < 16; ++n) {
    int sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int code = (k + n) % 16;
      sum += static_cast<int>(w.stages[0].token_codes[k]) * (code < 8 ? code : code - 16);
    }
    EXPECT_EQ(w.stages[0].linear1[n], static_cast<float>(sum)) << n;
  }
  // A bias of its own is added to the scaled sum of the two halves, not to the product.
  w.layer1.bias = w.make_bias(1, 16, w.random);
  std::fill_n(static_cast<float*>(w.layer1.bias.ref.data), 16, 3.0f);
  ASSERT_TRUE(w.run());
  for (int n = 0; n < 16; ++n) {
    int sum = 3;
    for (int k = 0; k < 16; ++k) {
      const int code = (k + n) % 16;
      sum += (static_cast<int>(w.stages[0].token_codes[k]) - 8) * (code < 8 ? code : code - 16);
    }
    EXPECT_EQ(w.stages[0].linear1[n], static_cast<float>(sum)) << n;
  }
}

TEST(Mx, ByHand) {
  ScenarioWorld w(kA8W8E4M3, {1}, 1, 1, 2, 1);
  put_bits(w.ranks[0].x.ref.data, DType::kBFloat16, 0, format::bf16_from_float(1));
  put_bits(w.ranks[0].x.ref.data, DType::kBFloat16, 1, format::bf16_from_float(-3));
  const auto set = [](Storage& storage, std::vector<int> codes) {
    for (size_t i = 0; i < codes.size(); ++i) {
      put_bits(storage.ref.data, storage.ref.dtype, static_cast<int64_t>(i), static_cast<uint64_t>(codes[i]));
    }
  };
  set(w.layer1.weight, {0x38, 0xb0, 0x40, 0x38});  // gate row 1, -0.5; up row 2, 1
  set(w.layer1.scale, {128, 0, 127, 0});
  set(w.layer2.weight, {0x38, 0xbc});  // 1, -1.5
  set(w.layer2.scale, {127, 0, 129, 0});
  w.weights(w.ranks[0])[0] = 1;
  ASSERT_TRUE(w.run());
  const Stages& s = w.stages[0];
  // The largest is 3 = 1.5 * 2: byte 1 + 127 - 8.
  EXPECT_EQ(s.token_codes, (std::vector<float>{128, -384}));
  EXPECT_EQ(s.token_scales, (std::vector<float>{0x1p-7f}));
  EXPECT_EQ(s.linear1, (std::vector<float>{5, -1}));
  const float activated = bf16(static_cast<float>(5 / (1 + std::exp(-5.0)) * -1));  // -4.96875
  EXPECT_EQ(s.activated, (std::vector<float>{activated}));
  EXPECT_EQ(s.requantised, (std::vector<float>{-320}));  // 318 rounds to a multiple of 32
  EXPECT_EQ(s.requantised_scales, (std::vector<float>{0x1p-6f}));
  EXPECT_EQ(s.linear2, (std::vector<float>{-5, 30}));
}

TEST(Mx, NaNStaysInItsTokenAndGroup) {
  ScenarioWorld w(kA8W4Fp, {3}, 2, 2);
  ASSERT_TRUE(w.run());
  const std::vector<float> clean = w.y();
  put_bits(w.ranks[0].x.ref.data, DType::kBFloat16, w.hidden + 40, 0x7fc0);
  ASSERT_TRUE(w.run());
  for (int64_t h = 0; h < w.hidden; ++h) {
    EXPECT_EQ(w.y()[h], clean[h]);
    EXPECT_TRUE(std::isnan(w.y()[w.hidden + h]));
    EXPECT_EQ(w.y()[2 * w.hidden + h], clean[2 * w.hidden + h]);
  }
}

TEST(Mx, GeluKeepsTheWholeWidth) {
  for (const ScenarioTypes& types : {kA8W8E5M2, kA4W4Fp}) {
    ScenarioWorld w(types, {3}, 2, 1);
    w.activation.name = "gelu";
    w.layer2 = w.random_layer(types.weight, 2, 80, 72);
    const Status status = w.run();
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(w.stages[0].activated.size(), 3u * 80);
    EXPECT_EQ(w.stages[0].requantised_scales.size(), 3u * 3);
  }
}

}  // namespace
}  // namespace megamoe::reference
