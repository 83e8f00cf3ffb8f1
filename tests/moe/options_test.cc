// Every option of a layer in every scenario: the fused path against the reference on every level, and the
// same bits for any threads, batch and packing, and for any ranks where the option does not speak of ranks.
#include <gtest/gtest.h>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::RankTokens;
using test::ScenarioTraits;
using test::TestLayer;

struct Option {
  std::string name;
  LayerOptions options;
  bool by_rank = false;  ///< the result depends on which rank holds which expert
};

Option make(const char* name, const std::function<void(LayerOptions&)>& set, bool by_rank = false) {
  Option option{name, {}, by_rank};
  set(option.options);
  return option;
}

// A scenario whose weights and token codes differ from those of the given one.
std::string other_scenario(const ScenarioTraits& traits) {
  if (traits.group != 0) return traits.mode == 0 ? "A16W16" : "A8W8-INT";
  if (traits.weight == DType::kBFloat16) return "A8W8-INT";
  if (traits.channel_scales()) return traits.nibbles() ? "A8W8-INT" : "A8W4-INT";
  return traits.nibbles() ? "A8W8-FP-E5M2" : "A4W4-FP";
}

std::vector<Option> options_of(const ScenarioTraits& traits) {
  std::vector<Option> all = {
      make("biases", [](LayerOptions& o) { o.biases = true; }),
      make("early weights", [](LayerOptions& o) { o.topk_weights_type = 1; }),
      make("early weights and biases", [](LayerOptions& o) { o.topk_weights_type = 1, o.biases = true; }),
      make("biases without compensation, early weights",
           [](LayerOptions& o) { o.topk_weights_type = 1, o.biases = true, o.compensation = false; }),
      make("rows back as E5M2", [](LayerOptions& o) { o.combine_quant_mode = 3; }),
      make("rows back as E4M3", [](LayerOptions& o) { o.combine_quant_mode = 4; }),
      make("topology 1", [](LayerOptions& o) { o.topo_type = 1; }),
      make("topology 2", [](LayerOptions& o) { o.topo_type = 2; }),
      make("float16", [](LayerOptions& o) { o.x = o.y = DType::kFloat16; }),
      make("float16 x", [](LayerOptions& o) { o.x = DType::kFloat16; }),
      make("float16 y", [](LayerOptions& o) { o.y = DType::kFloat16; }),
      make(
          "merged by rank", [](LayerOptions& o) { o.combine_comm_mode = 1; }, true),
      make(
          "merged by domain", [](LayerOptions& o) { o.combine_comm_mode = 2, o.topo_type = 1; }, true),
      make(
          "merged by rank, early, float16",
          [](LayerOptions& o) {
            o.combine_comm_mode = 1, o.topk_weights_type = 1, o.biases = true, o.y = DType::kFloat16;
          },
          true),
      make("gate and up in turn, biases, shared",
           [](LayerOptions& o) { o.interleave = 1, o.biases = true, o.shared_experts = 1; }),
      make("19 gate and 19 up columns in turn", [](LayerOptions& o) { o.interleave = 19; }),
      make("shared", [](LayerOptions& o) { o.shared_experts = 2; }),
      make("shared with biases, early weights, coded rows",
           [](LayerOptions& o) {
             o.shared_experts = 3, o.biases = true, o.topk_weights_type = 1, o.combine_quant_mode = 4;
           }),
      make("shared in another format, float16",
           [&](LayerOptions& o) {
             o.shared_experts = 1, o.shared_scenario = other_scenario(traits), o.biases = true;
             o.x = o.y = DType::kFloat16;
           }),
  };
  if (!traits.mx_tokens()) return all;
  all.push_back(make("codes", [](LayerOptions& o) { o.coded_x = true; }));
  all.push_back(make("codes, shared, early weights", [](LayerOptions& o) {
    o.coded_x = true, o.shared_experts = 2, o.topk_weights_type = 1, o.biases = true;
  }));
  return all;
}

class Options : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kTokens = 37;

  TestLayer layer(const Option& option) const {
    return TestLayer({70, 38, 7, 3, GetParam(), "swiglu"}, 17, option.options);
  }
  // Ids of the layer's own choice, an unused slot, an expert twice and a masked token.
  static RankTokens tokens(TestLayer& layer) {
    RankTokens all = layer.tokens(kTokens);
    all.ids[4] = -1;
    all.ids[7] = all.ids[6];
    all.active.assign(kTokens, 1);
    all.active[5] = 0;
    return all;
  }
};

TEST_P(Options, MatchTheReferenceOnEveryLevel) {
  for (const Option& option : options_of(test::traits_of(GetParam()))) {
    TestLayer tested = layer(option);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{20, 0, 9, 8}, {18, 19}}) {
      std::vector<RankTokens> ranks = test::split(tokens(tested), sizes);
      const std::vector<RankTokens> want = tested.reference(ranks, kTokens);
      for (const Isa isa : test::runnable_levels()) {
        test::run_local(tested, ranks, kTokens, {2, isa, true});
        for (size_t r = 0; r < ranks.size(); ++r) {
          EXPECT_LT(test::relative_error(ranks[r].y, want[r].y, option.options.y), tested.traits().bound)
              << option.name << " " << isa_name(isa) << " rank " << r;
          EXPECT_EQ(ranks[r].counts, want[r].counts) << option.name;
        }
      }
    }
  }
}

TEST_P(Options, KeepTheBitsOfATokenForAnyRanksThreadsAndBatch) {
  const std::vector<std::vector<int64_t>> splits = {{37}, {18, 19}, {37, 0}, {0, 5, 1, 31}, {1, 2, 3, 31}};
  for (const Option& option : options_of(test::traits_of(GetParam()))) {
    TestLayer tested = layer(option);
    const RankTokens all = tokens(tested);
    for (const Isa isa : {Isa::kGeneric, default_isa().value()}) {
      std::vector<std::vector<uint16_t>> want(5);  // by the number of ranks that own the experts
      for (const std::vector<int64_t>& sizes : splits) {
        const bool divides = sizes.size() % 2 == 0 || option.options.topo_type == 0;
        if (!divides) continue;  // domains of two ranks
        for (const int threads : {1, 3}) {
          std::vector<RankTokens> ranks = test::split(all, sizes);
          test::run_local(tested, ranks, kTokens, {threads, isa, threads == 1});
          std::vector<uint16_t>& first = want[option.by_rank ? sizes.size() : 0];
          if (first.empty()) first = test::gather_y(ranks);
          ASSERT_EQ(test::gather_y(ranks), first) << option.name << " " << isa_name(isa) << " "
                                                  << sizes.size() << " ranks, " << threads << " threads";
        }
      }
    }
  }
}

TEST_P(Options, ATokenAloneHasTheBitsItHasInABatch) {
  for (const Option& option : options_of(test::traits_of(GetParam()))) {
    if (option.options.topo_type != 0) continue;  // one rank has no domains
    TestLayer tested = layer(option);
    const RankTokens all = tokens(tested);
    std::vector<RankTokens> batch = test::split(all, {kTokens});
    test::run_local(tested, batch, kTokens, {2, default_isa().value(), true});
    auto buffer = SymmBuffer::create(Group::self(), tested.config(1), test::options(1));
    ASSERT_TRUE(buffer) << buffer.status().message();
    auto moe = MegaMoe::create(*buffer, tested.layer(1, 0, true));
    ASSERT_TRUE(moe) << moe.status().message();
    for (int64_t t = 0; t < kTokens; ++t) {
      RankTokens token = test::split(all, {t, 1, kTokens - 1 - t})[1];
      tested.poison(token);
      ASSERT_TRUE((*moe)->run(tested.args(token, 7)));
      const std::vector<uint16_t> want(batch[0].y.begin() + t * 70, batch[0].y.begin() + (t + 1) * 70);
      ASSERT_EQ(token.y, want) << option.name << " token " << t;
    }
  }
}

// The rows that come back for a token are counted in 16 bits.
TEST(MostSlots, ComeBackBesideSharedExperts) {
  constexpr int64_t kSlots = 32767;
  LayerOptions options;
  options.shared_experts = 4;
  TestLayer layer({1, 1, 1, kSlots, "A16W16", "swiglu"}, 3, options);
  std::vector<RankTokens> ranks{layer.tokens(1)};
  const std::vector<RankTokens> want = layer.reference(ranks, 1);
  test::run_local(layer, ranks, 1, {2, default_isa().value(), true});
  EXPECT_LT(test::relative_error(ranks[0].y, want[0].y), layer.traits().bound);
  EXPECT_EQ(ranks[0].counts[0], kSlots);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Options, testing::ValuesIn(test::scenario_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace megamoe
