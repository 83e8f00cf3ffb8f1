// Layers drawn at random, every option with every other: the fused path against the reference.
#include <gtest/gtest.h>

#include <sstream>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::RankTokens;
using test::TestLayer;

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  bool one_in(int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

struct RandomCase {
  test::LayerShape shape;
  LayerOptions options;
  int ranks;
  int threads;
  bool packed;
  std::string text;
};

RandomCase draw_case(Draw& draw, const test::ScenarioTraits& traits) {
  RandomCase c;
  // Two codes share a byte: even sizes wherever any experts have such codes.
  c.shape.hidden = 2 * draw.between(1, draw.one_in(4) ? 200 : 60);
  c.shape.intermediate = 2 * draw.between(1, draw.one_in(4) ? 100 : 40);
  c.shape.experts = draw.between(1, 12);
  c.shape.topk = draw.between(1, 6);
  c.shape.scenario = traits.name;
  c.shape.activation = draw.of({"swiglu", "swiglustep", "swigluoai", "situglu", "gelu"});
  c.ranks = static_cast<int>(draw.of({1, 2, 4}));
  c.threads = static_cast<int>(draw.between(1, 3));
  c.packed = !draw.one_in(3);
  LayerOptions& o = c.options;
  o.x = draw.of({DType::kBFloat16, DType::kFloat16});
  o.y = draw.of({DType::kBFloat16, DType::kFloat16});
  o.coded_x = traits.mx_tokens() && draw.one_in(3);
  o.biases = draw.one_in(2);
  if (c.shape.activation != "gelu" && draw.one_in(3))
    o.interleave = draw.of({int64_t{1}, c.shape.intermediate});
  if (draw.one_in(2)) o.shared_experts = draw.between(1, 3);
  if (!o.coded_x && draw.one_in(2)) {
    o.shared_scenario =
        test::kScenarioTraits[draw.between(0, static_cast<int64_t>(std::size(test::kScenarioTraits)) - 1)]
            .name;
  }
  o.topk_weights_type = static_cast<int>(draw.between(0, 1));
  o.combine_comm_mode = static_cast<int>(draw.between(0, c.ranks == 1 ? 1 : 2));
  o.topo_type = o.combine_comm_mode == 2 ? static_cast<int>(draw.between(1, 2)) : 0;
  if (o.combine_comm_mode == 0) o.combine_quant_mode = draw.of({0, 3, 4});
  std::ostringstream text;
  text << traits.name << " " << c.shape.hidden << "x" << c.shape.intermediate << "x" << c.shape.experts << "x"
       << c.shape.topk << " " << c.shape.activation << ", " << c.ranks << " ranks, " << c.threads
       << " threads, x " << dtype_name(o.x) << (o.coded_x ? " (codes)" : "") << ", y " << dtype_name(o.y)
       << ", biases " << o.biases << ", interleave " << o.interleave << ", shared " << o.shared_experts << " "
       << o.shared_scenario << ", early " << o.topk_weights_type << ", combine " << o.combine_quant_mode
       << "/" << o.combine_comm_mode << "/" << o.topo_type << ", packed " << c.packed;
  c.text = text.str();
  return c;
}

class Random : public testing::TestWithParam<uint32_t> {};

TEST_P(Random, LayersMatchTheReference) {
  Draw draw(GetParam());
  constexpr uint32_t kScenarios = std::size(test::kScenarioTraits);
  for (uint32_t i = 0; i < kScenarios + 4; ++i) {  // every scenario, and some twice
    const RandomCase c = draw_case(draw, test::kScenarioTraits[(GetParam() * 4 + i) % kScenarios]);
    SCOPED_TRACE(c.text);
    TestLayer layer(c.shape, GetParam() * 1000 + i, c.options);
    const bool repeats = draw.one_in(3);
    std::vector<RankTokens> ranks;
    for (int r = 0; r < c.ranks; ++r) {
      const int64_t count = draw.one_in(5) ? 0 : draw.between(1, draw.one_in(5) ? 140 : 30);
      RankTokens tokens = layer.tokens(count);
      for (int32_t& id : tokens.ids) {
        if (draw.one_in(8)) id = -1;
        if (repeats && draw.one_in(4)) id = static_cast<int32_t>(draw.between(0, c.shape.experts - 1));
      }
      if (draw.one_in(3)) {
        for (int64_t t = 0; t < count; ++t) tokens.active.push_back(draw.one_in(4) ? 0 : 1);
      }
      ranks.push_back(std::move(tokens));
    }
    const std::vector<RankTokens> want = layer.reference(ranks, 140);
    for (const Isa isa : test::runnable_levels()) {
      test::run_local(layer, ranks, 140, {c.threads, isa, c.packed});
      std::vector<uint16_t> got, expected;
      for (size_t r = 0; r < ranks.size(); ++r) {
        got.insert(got.end(), ranks[r].y.begin(), ranks[r].y.end());
        expected.insert(expected.end(), want[r].y.begin(), want[r].y.end());
        ASSERT_EQ(ranks[r].counts, want[r].counts) << isa_name(isa);
      }
      // Where rows come back as codes, a last bit of a row may move a code.
      const double bound = c.options.combine_quant_mode == 0 ? 4e-3 : 3e-2;
      ASSERT_LT(test::relative_error(got, expected, c.options.y), bound) << isa_name(isa);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Random, testing::Range(1u, 9u));

}  // namespace
}  // namespace megamoe
