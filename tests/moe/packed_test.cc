// What packed weights say of themselves, and what a layer makes of it.
#include <gtest/gtest.h>

#include <string>

#include "support/layer.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::LayerShape;
using test::TestLayer;

constexpr int64_t kExperts = 4, kHidden = 64, kInner = 32;

LayerShape shape_of(const std::string& scenario) {
  return {kHidden, kInner, kExperts, 2, scenario, "swiglu"};
}

TEST(Packed, KnowsItsScenarios) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"A16W16", {"A16W16"}},
      {"A8W8-INT", {"A8W8-INT"}},
      {"A8W4-INT", {"A8W4-INT"}},
      {"A8W8-FP", {"A8W8-FP"}},
      {"A8W4-FP", {"A16W4-FP", "A8W4-FP", "A4W4-FP"}},
      {"A16W4-GROUP", {"A16W4-GROUP", "A8W4-GROUP"}},
      {"A8W8-BLOCK", {"A16W8-BLOCK", "A8W8-BLOCK"}},
  };
  for (const auto& [scenario, expected] : cases) {
    const TestLayer layer(shape_of(scenario), 1);
    const Layer packed = layer.layer(1, 0, true);
    EXPECT_EQ(packed.packed1->scenarios(), expected);
    EXPECT_EQ(packed.packed2->scenarios(), expected);
  }
}

TEST(Packed, RemembersWhatItWasMadeFrom) {
  LayerOptions options;
  options.interleave = 4;
  options.biases = true;
  const TestLayer layer(shape_of("A8W4-INT"), 1, options);
  const Layer made = layer.layer(1, 0, true);
  EXPECT_EQ(made.packed1->format(), "int4");
  EXPECT_EQ(made.packed1->interleave(), 4);
  EXPECT_EQ(made.packed1->layout(), Layout::kNd);
  EXPECT_EQ(made.packed1->scale_group(), 0);
  EXPECT_FALSE(made.packed1->k_last());
  EXPECT_TRUE(made.packed1->gated());
  EXPECT_FALSE(made.packed2->gated());
  EXPECT_TRUE(made.packed1->has_bias());
  EXPECT_TRUE(made.packed1->has_added_bias());

  const TestLayer blocks(shape_of("A8W8-BLOCK"), 1);
  const Layer of_blocks = blocks.layer(1, 0, true);
  EXPECT_EQ(of_blocks.packed2->format(), "float8_e4m3fn with scale_group 128");
  EXPECT_EQ(of_blocks.packed2->scale_group(), 128);
  EXPECT_FALSE(of_blocks.packed2->has_bias());

  LinearWeights tiled;
  const std::vector<uint16_t> memory(size_t{64} * 64, 0);
  tiled.weight = {TensorView(memory.data(), DType::kBFloat16, {64, 64}, Layout::kFractalNz)};
  tiled.k_last = true;
  const auto packed = PackedWeights::pack_linear2(tiled, 1);
  ASSERT_TRUE(packed) << packed.status().message();
  EXPECT_EQ((*packed)->layout(), Layout::kFractalNz);
  EXPECT_TRUE((*packed)->k_last());
}

TEST(Packed, AnOrderThatIsStatedMustBeTheirs) {
  LayerOptions options;
  options.interleave = 4;
  const TestLayer layer(shape_of("A16W16"), 1, options);
  auto buffer = SymmBuffer::create(Group::self(), layer.config(8), {});
  ASSERT_TRUE(buffer);
  const auto error = [&](const std::function<void(Layer&)>& change) {
    Layer changed = layer.layer(1, 0, true);
    change(changed);
    return MegaMoe::create(*buffer, changed).status().message();
  };
  EXPECT_EQ(error([](Layer&) {}), "");
  EXPECT_EQ(error([](Layer& l) { l.weight1.interleave = 4; }), "");
  EXPECT_EQ(error([](Layer& l) { l.weight1.interleave = 2; }),
            "weight1_interleave = 2: expected 4 as weight1 was packed");
  EXPECT_EQ(error([](Layer& l) { l.weight1.interleave = -1; }),
            "weight1_interleave = -1: expected 4 as weight1 was packed");
  EXPECT_EQ(error([](Layer& l) { l.weight2.k_last = true; }),
            "weight2.k_last = true: expected false as weight2 was packed");
  EXPECT_EQ(error([](Layer& l) { l.weight2.scale_group = 32; }),
            "weight2.scale_group = 32: expected 0 as weight2 was packed");
}

TEST(Packed, LayersThatDoNotBelongTogetherAreNamed) {
  const auto made = [](const std::string& scenario, int64_t experts, int64_t hidden, int64_t inner) {
    return TestLayer({hidden, inner, experts, 2, scenario, "swiglu"}, 1).layer(1, 0, true);
  };
  const Layer layer = made("A8W4-INT", kExperts, kHidden, kInner);
  const auto error = [&](const Layer& other) {
    return PackedWeights::check_pair(*layer.packed1, *other.packed2).message();
  };
  EXPECT_EQ(error(layer), "");
  EXPECT_EQ(error(made("A8W4-INT", 3, kHidden, kInner)), "weight2 has experts 3: expected 4");
  EXPECT_EQ(error(made("A8W4-INT", kExperts, kHidden, 64)), "weight2 has reduction size 64: expected 32");
  EXPECT_EQ(error(made("A8W4-INT", kExperts, 96, kInner)), "weight2 has output size 96: expected 64");
  EXPECT_EQ(error(made("A8W8-INT", kExperts, kHidden, kInner)),
            "weight2 has type int8: expected int4 as weight1");
  EXPECT_EQ(error(made("A8W4-GROUP", kExperts, kHidden, kInner)),
            "weight2 has type int4 with scale_group: expected int4 as weight1");
}

}  // namespace
}  // namespace megamoe
