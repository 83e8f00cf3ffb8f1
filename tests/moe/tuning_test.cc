// Block sizes: no bit depends on them, plans read them from files, and files are refused by name.
#include "moe/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "kernel/registry.h"
#include "moe/buffer.h"
#include "support/runs.h"

namespace megamoe {
namespace {

using moe::BlockSize;
using moe::TuningEntry;
using moe::TuningKey;
using nlohmann::json;

constexpr int64_t kTokens = 37;
constexpr int kThreads = 2;

std::shared_ptr<const Tuning> tuning_of(const std::vector<TuningEntry>& entries) {
  auto parsed = Tuning::parse(moe::tuning_text(entries), "measured");
  EXPECT_TRUE(parsed) << parsed.status().message();
  return parsed ? *parsed : nullptr;
}

// The entry of a small layer.
TuningEntry small_entry(int64_t ranks) {
  TuningEntry entry;
  entry.key.isa = Isa::kAvx2;
  entry.key.scenario = "A4W4-FP";
  entry.key.hidden = 64;
  entry.key.intermediate = 32;
  entry.key.experts = 8;
  entry.key.topk = 2;
  entry.key.ranks = ranks;
  entry.key.threads = 3;
  entry.sizes = {{moe::find_block_size("coded_rows"), 2}};
  return entry;
}

TuningKey key_of(const test::LayerShape& shape, Isa isa) {
  return {isa, shape.scenario, shape.hidden, shape.intermediate, shape.experts, shape.topk, 1, kThreads};
}

class EveryScenario : public testing::TestWithParam<const char*> {};

// Ranges of codes that end inside and at the end of K, blocks of few rows and of many.
TEST_P(EveryScenario, HasTheSameBitsForEveryBlockSize) {
  const test::LayerShape shape{416, 160, 6, 2, GetParam()};
  test::TestLayer layer(shape, 11);
  std::vector<test::RankTokens> tokens = {layer.tokens(kTokens, [](int64_t t, int64_t k) {
    return static_cast<int32_t>(k == 0 ? t % 37 == 0 : 2 + t % 4 * (t % 3 == 0));
  })};
  for (const Isa isa : test::runnable_levels()) {
    test::run_local(layer, tokens, kTokens, {kThreads, isa, true, nullptr});
    const std::vector<uint16_t> want = tokens[0].y;
    for (const BlockSize& size : moe::block_sizes()) {
      std::vector<int64_t> values = size.candidates;
      values.insert(values.end(), {size.least, size.most});
      for (const int64_t value : values) {
        const auto tuning = tuning_of({{key_of(shape, isa), {{&size, value}}}});
        test::run_local(layer, tokens, kTokens, {kThreads, isa, true, tuning});
        EXPECT_EQ(tokens[0].y, want) << isa_name(isa) << " " << size.name << " " << value;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tuning, EveryScenario, testing::ValuesIn(test::scenario_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Sums of values that are hardly any numbers: whether codes or strips are multiplied, zeros have one sign.
TEST(BlockSizes, NoZeroDependsOnThem) {
  for (const char* const scenario : {"A16W4-FP", "A8W4-FP", "A4W4-FP", "A8W8-FP"}) {
    const test::LayerShape shape{256, 64, 1, 1, scenario};
    test::TestLayer layer(shape, 11);
    Layer planned = layer.layer(1, 0, false);
    TensorView& scale = planned.weight2.scale[0];
    std::vector<uint8_t> least(static_cast<size_t>(scale.elements()));
    for (size_t i = 0; i < least.size(); ++i) least[i] = i % 7 == 0;
    scale.data = least.data();
    planned.packed1 = PackedWeights::pack_linear1(planned.weight1, true, 1).value();
    planned.packed2 = PackedWeights::pack_linear2(planned.weight2, 1).value();
    planned.weight1 = planned.weight2 = {};
    test::RankTokens tokens = layer.tokens(kTokens);
    for (uint16_t& x : tokens.x) x = x & 0x7fff ? static_cast<uint16_t>(x - (2 << 7)) : x;  // a quarter
    for (const Isa isa : test::runnable_levels()) {
      const auto run = [&](std::shared_ptr<const Tuning> tuning) {
        auto buffer = SymmBuffer::create(Group::self(), layer.config(kTokens), test::options(kThreads, isa));
        Layer tuned = planned;
        tuned.tuning = std::move(tuning);
        auto op = MegaMoe::create(buffer.value(), std::move(tuned));
        layer.poison(tokens);
        const Status status = op.value()->run(layer.args(tokens, 1));
        EXPECT_TRUE(status) << status.message();
        return tokens.y;
      };
      const std::vector<uint16_t> want = run(nullptr);
      EXPECT_GT(std::count(want.begin(), want.end(), 0), 0) << scenario << " " << isa_name(isa);
      const auto strips = tuning_of({{key_of(shape, isa), {{moe::find_block_size("coded_rows"), 0}}}});
      EXPECT_EQ(run(strips), want) << scenario << " " << isa_name(isa);
    }
  }
}

TEST(BlockSizes, DefaultsAreAllowedForAnyCache) {
  for (const int64_t l1d : {0, 16 << 10, 32 << 10, 48 << 10, 64 << 10, 1 << 20}) {
    base::Topology caches;
    caches.l1d_bytes = l1d;
    const moe::Blocking blocking = moe::default_blocking(caches);
    for (const BlockSize& size : moe::block_sizes()) {
      EXPECT_TRUE(size.allows(blocking.*size.value)) << size.name << " " << blocking.*size.value;
      for (const int64_t candidate : size.candidates) EXPECT_TRUE(size.allows(candidate)) << size.name;
    }
  }
  base::Topology usual;
  usual.l1d_bytes = 48 << 10;
  EXPECT_EQ(moe::default_blocking(usual).strip_bytes, 16 << 10);
  usual.l1d_bytes = 32 << 10;
  EXPECT_EQ(moe::default_blocking(usual).strip_bytes, 8 << 10);
}

std::unique_ptr<MegaMoe> plan(const test::LayerShape& shape, Isa isa, std::shared_ptr<const Tuning> tuning) {
  test::TestLayer tested(shape, 3);
  auto buffer = SymmBuffer::create(Group::self(), tested.config(4), test::options(kThreads, isa)).value();
  Layer layer = tested.layer(1, 0, true);
  layer.tuning = std::move(tuning);
  auto op = MegaMoe::create(buffer, std::move(layer));
  EXPECT_TRUE(op) << op.status().message();
  return std::move(*op);
}

// The lines of a plan that speak of block sizes.
std::string planned(const test::LayerShape& shape, std::shared_ptr<const Tuning> tuning) {
  std::string lines;
  for (const auto& [key, value] : plan(shape, Isa::kGeneric, std::move(tuning))->description()) {
    if (key.rfind("block sizes", 0) == 0) lines += key + ": " + value + "\n";
  }
  return lines;
}

TEST(TuningFile, IsReadByThePlanOfItsLayer) {
  const test::LayerShape shape{64, 32, 8, 2, "A8W4-INT"};
  const auto tuning =
      tuning_of({{key_of(shape, Isa::kGeneric),
                  {{moe::find_block_size("strip_bytes"), 12288}, {moe::find_block_size("piece_ns"), 5000}}}});
  const std::string tuned = planned(shape, tuning);
  EXPECT_NE(tuned.find("strip_bytes 12288, piece_ns 5000, coded_rows 128"), std::string::npos) << tuned;
  EXPECT_NE(tuned.find("block sizes from: tuning measured"), std::string::npos) << tuned;

  const std::string plain = planned(shape, nullptr);
  EXPECT_NE(plain.find("piece_ns 20000"), std::string::npos) << plain;
  EXPECT_NE(plain.find("block sizes from: defaults\n"), std::string::npos) << plain;
  // One thing of the key is another.
  test::LayerShape other = shape;
  other.scenario = "A8W8-INT";
  const std::string foreign = planned(other, tuning);
  EXPECT_NE(foreign.find("piece_ns 20000"), std::string::npos) << foreign;
  EXPECT_NE(foreign.find("defaults: measured has no such layer"), std::string::npos) << foreign;
}

TEST(Plan, SaysWhatABlockOfSoManyRowsReads) {
  for (const Isa isa : test::runnable_levels()) {
    const test::LayerShape coded{64, 32, 8, 2, "A8W4-INT"};
    const auto tuning = tuning_of({{key_of(coded, isa), {{moe::find_block_size("coded_rows"), 2}}}});
    const kernel::Gemm& gemm = kernel::gemm_for(kernel::Family::kS8, isa);
    const std::string name = gemm.name;
    const bool reads_codes = gemm.coded_rows[static_cast<int>(kernel::WeightCode::kInt4)] >= 2;
    const auto lines = plan(coded, isa, tuning)->description();
    const auto line = [&](const std::string& key) {
      const auto found =
          std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == key; });
      return found == lines.end() ? "" : found->second;
    };
    const std::string decoded = name + " on strips of decoded codes";
    for (const std::string linear : {"Linear1", "Linear2"}) {
      if (reads_codes) {
        EXPECT_EQ(line(linear + " rows 1 to 2").rfind(name + " on codes", 0), 0u) << linear << isa_name(isa);
        EXPECT_EQ(line(linear + " rows 3 to 128"), decoded) << isa_name(isa);
      } else {
        EXPECT_EQ(line(linear + " rows 1 to 128"), decoded) << isa_name(isa);
      }
    }
  }
  const auto lines = plan({64, 32, 8, 2, "A8W8-INT"}, Isa::kGeneric, nullptr)->description();
  const std::pair<std::string, std::string> whole = {
      "Linear2 rows 1 to 128", kernel::gemm_for(kernel::Family::kS8, Isa::kGeneric).name};
  EXPECT_NE(std::find(lines.begin(), lines.end(), whole), lines.end());
}

// Where a kernel decodes weights once for many rows, blocks of that many have it so, and others read codes.
TEST(Plan, SaysFromHowManyRowsOnWeightsAreDecodedOnce) {
  for (const Isa isa : test::runnable_levels()) {
    const kernel::Family family = kernel::e2m1_family(isa);
    constexpr auto kCode = kernel::WeightCode::kE2M1;
    const kernel::Gemm& gemm = kernel::group_gemm_for(family, kCode, isa);
    const int least = gemm.kept_rows[static_cast<int>(kCode)];
    if (family != kernel::Family::kS8 || least == 0) continue;
    const auto lines = plan({64, 32, 8, 2, "A4W4-FP"}, isa, nullptr)->description();
    const std::string name = gemm.name, below = "Linear1 rows 1 to " + std::to_string(least - 1);
    const std::string above = "Linear1 rows " + std::to_string(least) + " to 128";
    using Line = std::pair<std::string, std::string>;
    EXPECT_NE(std::find(lines.begin(), lines.end(), Line(below, name + " on codes")), lines.end());
    EXPECT_NE(
        std::find(lines.begin(), lines.end(), Line(above, name + " on codes, decoded once for all rows")),
        lines.end());
  }
}

// Pieces of Linear1 and Linear2 of experts with 40 and 20 panels, of which each of two threads would take 5
// and 2 at a time with one row; the experts of a token's slots are given.
template <class Expert>
std::array<int64_t, 2> pieces(Isa isa, int64_t piece_ns, int64_t tokens_count, int64_t topk, Expert expert) {
  const test::LayerShape shape{640, 640, 9, topk, "A8W4-FP"};
  test::TestLayer tested(shape, 3);
  BufferOptions options = test::options(kThreads, isa);
  options.trace = true;
  auto buffer = SymmBuffer::create(Group::self(), tested.config(tokens_count), options).value();
  Layer layer = tested.layer(1, 0, true);
  layer.tuning = tuning_of({{key_of(shape, isa), {{moe::find_block_size("piece_ns"), piece_ns}}}});
  auto op = MegaMoe::create(buffer, std::move(layer)).value();
  test::RankTokens tokens = tested.tokens(tokens_count, expert);
  tested.poison(tokens);
  EXPECT_TRUE(op->run(tested.args(tokens, shape.experts)));
  std::array<int64_t, 2> count{};
  for (const TraceSpan& span : buffer->trace()) {
    count[0] += span.stage == TraceSpan::Stage::kLinear1;
    count[1] += span.stage == TraceSpan::Stage::kLinear2;
  }
  return count;
}

std::array<int64_t, 2> pieces_of_one_block(Isa isa, int64_t piece_ns, int64_t rows = 1) {
  return pieces(isa, piece_ns, rows, 1, [](int64_t, int64_t) { return 1; });
}

TEST(Plan, CutsBlocksFinelyOnlyWhereLittleIsLeftForOtherThreads) {
  for (const Isa isa : test::runnable_levels()) {
    // A panel counts as 1.1 us: 36 of them last eight times 5. Two blocks for each thread are cut finely.
    const auto one = pieces_of_one_block(isa, 5000);
    const auto eight = pieces(isa, 5000, 1, 8, [](int64_t, int64_t slot) { return slot + 1; });
    EXPECT_EQ(eight[0], 4 * one[0] + 4 * 2) << isa_name(isa);
    EXPECT_EQ(eight[1], 4 * one[1] + 4 * 1) << isa_name(isa);
    // 63 rows, and seven blocks of 9: what comes after the first one is too little for it.
    const auto tall = pieces_of_one_block(isa, 5000, 63), flat = pieces_of_one_block(isa, 5000, 9);
    const auto mixed =
        pieces(isa, 5000, 63, 2, [](int64_t token, int64_t slot) { return slot == 0 ? 1 : 2 + token % 7; });
    EXPECT_GE(mixed[0], tall[0] + 4 * flat[0]) << isa_name(isa);
    EXPECT_LT(mixed[0], tall[0] + 7 * flat[0]) << isa_name(isa);
  }
}

TEST(Plan, TakesTheMostAndTheFewestRowsInTurn) {
  const test::LayerShape shape{64, 32, 6, 1, "A8W8-INT"};
  test::TestLayer tested(shape, 3);
  constexpr int64_t kRows = 15;
  auto buffer = SymmBuffer::create(Group::self(), tested.config(kRows), test::options(kThreads)).value();
  auto op = MegaMoe::create(buffer, tested.layer(1, 0, true)).value();
  // Expert e gets e rows.
  test::RankTokens tokens = tested.tokens(kRows, [](int64_t token, int64_t) {
    int64_t expert = 1;
    for (int64_t end = 1; token >= end; end += ++expert) continue;
    return expert;
  });
  tested.poison(tokens);
  ASSERT_TRUE(op->run(tested.args(tokens, shape.experts)));
  std::vector<int64_t> rows;
  for (const moe::Block& block : buffer->impl().blocks) rows.push_back(block.rows);
  EXPECT_EQ(rows, (std::vector<int64_t>{5, 1, 4, 2, 3}));
}

TEST(Plan, CutsNoProductOfTwoPanels) {
  for (const Isa isa : test::runnable_levels()) {
    const auto pieces = pieces_of_one_block(isa, 5000);
    constexpr auto kFamily = kernel::Family::kBf16;
    constexpr auto kCode = kernel::WeightCode::kE2M1;
    const kernel::Gemm& gemm = kernel::multiplies_e4m3_by_e2m1(isa)
                                   ? kernel::group_gemm_for(kFamily, kCode, isa)
                                   : kernel::gemm_for(kFamily, isa);
    const bool pairs = gemm.paired_rows[static_cast<int>(kCode)] > 0;
    EXPECT_EQ(pieces[0], pairs ? 7 : 8) << isa_name(isa);
    EXPECT_EQ(pieces[1], 10) << isa_name(isa);
  }
}

TEST(Plan, CutsNoProductIntoPiecesShorterThanTheirClaimIsWorth) {
  for (const Isa isa : test::runnable_levels()) {
    // A panel counts as 1.1 us: 7 of them, or 4 pairs, last two fifths of 20.
    const auto shared = pieces_of_one_block(isa, 20000);
    EXPECT_LE(shared[0], 6) << isa_name(isa);
    EXPECT_EQ(shared[1], 3) << isa_name(isa);
    const auto whole = pieces_of_one_block(isa, 1000000);
    EXPECT_EQ(whole[0], 1) << isa_name(isa);
    EXPECT_EQ(whole[1], 1) << isa_name(isa);
  }
}

TEST(TuningFile, KeepsItsEntriesThroughText) {
  const TuningEntry first = small_entry(4);
  TuningEntry second = small_entry(1);
  second.sizes.clear();
  const auto tuning = tuning_of({first, second});
  ASSERT_EQ(tuning->impl().entries.size(), 2u);
  EXPECT_EQ(tuning->impl().entries[0].key, first.key);
  EXPECT_EQ(tuning->impl().entries[0].sizes, first.sizes);
  EXPECT_EQ(moe::tuning_text(tuning->impl().entries), moe::tuning_text({first, second}));
}

TEST(TuningFile, RefusesOthersByName) {
  const json good = json::parse(moe::tuning_text({small_entry(1)}));
  ASSERT_TRUE(Tuning::parse(good.dump(), "f"));
  const struct {
    std::function<void(json&)> change;
    std::string error;
  } cases[] = {
      {[](json& f) { f.erase("megamoe_tuning"); },
       "f: megamoe_tuning is missing: expected a file of megamoe tune"},
      {[](json& f) { f = json::array(); }, "f: megamoe_tuning is missing: expected a file of megamoe tune"},
      {[](json& f) { f["megamoe_tuning"] = 0; },
       "f: megamoe_tuning = 0: expected 1, the format of this version: run megamoe tune again"},
      {[](json& f) { f["cpu"] = "i486"; },
       "f: cpu = i486: expected " + base::cpu_model() + ", the CPU of this machine"},
      {[](json& f) { f["cpu"] = 4; }, "f: file.cpu = 4: expected a text"},
      {[](json& f) { f["note"] = 4; }, "f: file.note: expected one of megamoe_tuning, cpu, layers"},
      {[](json& f) { f.erase("layers"); }, "f: layers is missing: expected an array"},
      {[](json& f) { f["layers"][0] = 4; }, "f: layers[0] = 4: expected an object"},
      {[](json& f) { f["layers"][0].erase("topk"); },
       "f: layers[0].topk is missing: expected a number from 1"},
      {[](json& f) { f["layers"][0]["hidden"] = 6.5; },
       "f: layers[0].hidden = 6.5: expected a number from 1"},
      {[](json& f) { f["layers"][0]["isa"] = 4; }, "f: layers[0].isa = 4: expected a text"},
      {[](json& f) { f["layers"][0].erase("blocks"); }, "f: layers[0].blocks is missing: expected an object"},
      {[](json& f) { f["layers"][0]["blocks"]["tile"] = 4; },
       "f: layers[0].blocks.tile: expected one of strip_bytes, piece_ns, coded_rows, dispatch_tokens, "
       "combine_tokens"},
      {[](json& f) { f["layers"][0]["blocks"]["strip_bytes"] = 5000; },
       "f: layers[0].blocks.strip_bytes = 5000: expected a multiple of 4096 in [4096, 65536]"},
      {[](json& f) { f["layers"][0]["blocks"]["piece_ns"] = -1; },
       "f: layers[0].blocks.piece_ns = -1: expected a value in [1000, 10000000]"},
      {[](json& f) { f["layers"].push_back(f["layers"][0]); },
       "f: layers[1] is of the same layer as one before: expected it once"},
  };
  for (const auto& [change, error] : cases) {
    json file = good;
    change(file);
    const auto parsed = Tuning::parse(file.dump(), "f");
    ASSERT_FALSE(parsed) << error;
    EXPECT_EQ(parsed.status().message(), error);
  }
  json level = good;
  level["layers"][0]["isa"] = "turbo";
  EXPECT_EQ(
      Tuning::parse(level.dump(), "f").status().message().rfind("f: layers[0].isa = turbo: expected", 0), 0u);
  EXPECT_EQ(Tuning::parse("{", "f").status().message().rfind("f: not valid JSON", 0), 0u);
  EXPECT_EQ(Tuning::read("/nowhere/at all").status().message(),
            "tuning file \"/nowhere/at all\" cannot be opened, No such file or directory: expected a file of "
            "`megamoe tune`");
}

}  // namespace
}  // namespace megamoe
