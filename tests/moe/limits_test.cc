// Every parameter of the operator documents at and past the limits of every profile, as a table.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <set>
#include <string>

#include "limit_setup.h"
#include "moe/limit_rows.h"
#include "moe/validate.h"

namespace megamoe {
namespace {

using test::LimitSetup;
using test::smallest_config;

struct ConfigCase {
  const char* profile;
  const char* parameter;
  const char* kind;
  void (*change)(BufferConfig& c, int64_t& ranks);
  const char* error;
};

constexpr ConfigCase kConfigCases[] = {
#define CONFIG_CASE(profile, parameter, kind, change, error) \
  {#profile, #parameter, #kind,                              \
   []([[maybe_unused]] BufferConfig& c, [[maybe_unused]] int64_t& ranks) { (void)(change); }, error},
#include "limit_config_cases.inc"
#undef CONFIG_CASE
};

struct LayerCase {
  const char* profile;
  const char* scenario;
  const char* parameter;
  const char* kind;
  void (*change)(LimitSetup& s);
  const char* error;
};

constexpr LayerCase kLayerCases[] = {
#define LAYER_CASE(profile, scenario, parameter, kind, change, error) \
  {#profile, scenario, #parameter, #kind, []([[maybe_unused]] LimitSetup& s) { (void)(change); }, error},
#include "limit_layer_cases.inc"
#undef LAYER_CASE
};

struct CallCase {
  const char* profile;
  const char* scenario;
  const char* parameter;
  const char* kind;
  void (*change)(LimitSetup& s, CallArgs& a);
  const char* error;
};

constexpr CallCase kCallCases[] = {
#define CALL_CASE(profile, scenario, parameter, kind, change, error)                     \
  {#profile,                                                                             \
   scenario,                                                                             \
   #parameter,                                                                           \
   #kind,                                                                                \
   []([[maybe_unused]] LimitSetup& s, [[maybe_unused]] CallArgs& a) { (void)(change); }, \
   error},
#include "limit_call_cases.inc"
#undef CALL_CASE
};

template <class Case>
std::string title(const Case& test) {
  return std::string(test.profile) + " " + test.parameter + " " + test.kind;
}

TEST(Limits, Settings) {
  for (const ConfigCase& test : kConfigCases) {
    BufferConfig config = smallest_config(test.profile);
    int64_t ranks = 2;
    test.change(config, ranks);
    EXPECT_EQ(mega_moe_ccl_buffer_size(ranks, config).status().message(), test.error) << title(test);
  }
}

TEST(Limits, Layers) {
  for (const LayerCase& test : kLayerCases) {
    LimitSetup setup(test.profile, test.scenario);
    test.change(setup);
    test::on_local_ranks(2, [&](int, const Group& group) {
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << title(test) << ": " << buffer.status().message();
      EXPECT_EQ(MegaMoe::create(*buffer, setup.l).status().message(), test.error)
          << title(test) << " of " << test.scenario;
    });
  }
}

// What a profile refuses of raw weights it refuses of packed ones.
TEST(Limits, PackedLayers) {
  int refused = 0;
  for (const LayerCase& test : kLayerCases) {
    LimitSetup setup(test.profile, test.scenario);
    test.change(setup);
    const std::string name = title(test) + " of " + test.scenario;
    if (!setup.pack()) continue;  // refused before there is a layer
    refused += *test.error != '\0';
    test::on_local_ranks(2, [&](int, const Group& group) {
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << name << ": " << buffer.status().message();
      EXPECT_EQ(MegaMoe::create(*buffer, setup.l).status().message(), test.error) << name;
    });
  }
  EXPECT_GE(refused, 60) << "packing must not hide what is to be refused";
}

TEST(Limits, Calls) {
  for (const CallCase& test : kCallCases) {
    LimitSetup ranks[] = {{test.profile, test.scenario}, {test.profile, test.scenario}};
    const std::string name = title(test) + " of " + test.scenario;
    for (LimitSetup& setup : ranks) test.change(setup, setup.a);
    if (std::string(test.error).empty() && ranks[0].a.x.shape[0] > 8) {
      // Too many tokens to run in a test: the check alone.
      EXPECT_EQ(moe::check_call(ranks[0].a, ranks[0].c, ranks[0].local_experts()).message(), "") << name;
      continue;
    }
    const std::string expected = std::string(test.error).empty() ? "" : std::string("rank 0: ") + test.error;
    test::on_local_ranks(2, [&](int rank, const Group& group) {
      LimitSetup& setup = ranks[rank];
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << name << ": " << buffer.status().message();
      const auto moe = MegaMoe::create(*buffer, setup.l);
      ASSERT_TRUE(moe) << name << ": " << moe.status().message();
      EXPECT_EQ((*moe)->run(setup.a).message(), expected) << name;
      EXPECT_TRUE(expected.empty() || setup.untouched()) << name;
    });
  }
}

TEST(Limits, RanksOfA2A3PassEquallyManyTokens) {
  for (const auto& [profile, scenario, error] :
       {std::tuple{"ascend_a2_a3", "A16W16",
                   "rank 1: x has 3 tokens: expected 2 as on rank 0 (profile ascend_a2_a3)"},
        std::tuple{"ascend_950", "A8W8-FP", ""}, std::tuple{"cpu", "A16W16", ""}}) {
    LimitSetup ranks[] = {{profile, scenario}, {profile, scenario}};
    ranks[1].tokens(3);
    test::on_local_ranks(2, [&](int rank, const Group& group) {
      LimitSetup& setup = ranks[rank];
      const auto buffer = SymmBuffer::create(group, setup.c, test::options(1));
      ASSERT_TRUE(buffer) << buffer.status().message();
      const auto moe = MegaMoe::create(*buffer, setup.l);
      ASSERT_TRUE(moe) << moe.status().message();
      EXPECT_EQ((*moe)->run(setup.a).message(), error);
      setup.tokens(4);
      EXPECT_EQ((*moe)->run(setup.a).message(), "") << "the next legal call works";
    });
  }
}

// Each limit of a device is broken by some case, so that no row is without a test.
TEST(Limits, EveryLimitHasACaseThatBreaksIt) {
  std::set<std::string> texts;
  for (const ConfigCase& test : kConfigCases) texts.insert(test.error);
  for (const LayerCase& test : kLayerCases) texts.insert(test.error);
  for (const CallCase& test : kCallCases) texts.insert(test.error);
  for (const moe::ProfileInfo& info : moe::profiles()) {
    for (const moe::Limit& limit : moe::limit_rows()) {
      const bool behaviour = limit.parameter == moe::Parameter::kRepeatedExperts ||
                             limit.parameter == moe::Parameter::kUnequalTokens;
      if (behaviour || !moe::holds_for(limit, info.profile)) continue;
      // Follows from the limits on ep_world_size and num_experts: 2048 experts on 2 ranks or more.
      if (limit.parameter == moe::Parameter::kExpertsPerRank && info.profile == moe::Profile::kAscend950)
        continue;
      const std::string name = std::string(moe::parameter_info(limit.parameter).name) + " ";
      const bool fixed =
          !limit.allowed.low.refers && !limit.allowed.high.refers && !limit.allowed.multiple.refers;
      const std::string when = moe::when_text(limit);
      const std::string end =
          (fixed ? ": expected " + moe::allowed_text(limit, nullptr) : "") +
          (when.empty() ? "" : " with " + when) +
          (moe::holds_everywhere(limit) ? "" : std::string(" (profile ") + info.name + ")");
      const bool broken = std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
        return text.rfind(name, 0) == 0 && text.size() >= end.size() &&
               text.compare(text.size() - end.size(), end.size(), end) == 0;
      });
      EXPECT_TRUE(broken) << name << end;
    }
  }
}

// One part after another, each on a cache line, the whole on a page: written out in 128 bits.
TEST(BufferSize, LargestDeviceSizesAreExact) {
  using Wide = unsigned __int128;
  BufferConfig config = smallest_config("ascend_950");
  config.num_experts = 2048;
  config.hidden = 8192;
  config.intermediate_hidden = 4096;
  config.num_topk = 32;
  config.num_max_tokens_per_rank = 65536;
  const Wide ranks = 1024;
  const Wide rows = Wide{65536} * 1024 * 2;  // two experts per rank, each at most once in a token
  const Wide parts[] = {
      4096,        2 * ranks * (512 + 2048 * 4), (rows / 128 + 2) * 4,
      rows * 8192, rows * (8192 / 32),           rows * 4,
      rows * 16,   Wide{65536} * 32 * 8192 * 2,  Wide{65536} * 4,
  };
  Wide bytes = 0;
  for (const Wide part : parts) bytes = (bytes + 63) / 64 * 64 + part;
  bytes = (bytes + 4095) / 4096 * 4096;
  const Result<int64_t> size = mega_moe_ccl_buffer_size(1024, config);
  ASSERT_TRUE(size) << size.status().message();
  EXPECT_GT(bytes, Wide{1} << 40);
  EXPECT_TRUE(static_cast<Wide>(*size) == bytes) << *size;
}

TEST(BufferSize, OverflowIsRefused) {
  BufferConfig config = smallest_config("cpu");
  config.num_max_tokens_per_rank = int64_t{1} << 32;
  config.num_topk = 32767;
  config.hidden = int64_t{1} << 24;
  EXPECT_EQ(
      mega_moe_ccl_buffer_size(1024, config).status().message(),
      "symmetric memory: codes = 144110790029344768 x 33554432 bytes after 4503462189600832 bytes: expected "
      "less than 2^63 bytes in all");
  config.num_experts = 1 << 20;
  config.max_recv_token_num = 1;
  EXPECT_EQ(mega_moe_ccl_buffer_size(1024, config).status().code(), Code::kInvalidArgument) << "slots";
}

TEST(BufferSize, OneByteLessThanNeededIsRefusedWithTheNeed) {
  for (const char* profile : {"cpu", "ascend_a2_a3", "ascend_950"}) {
    BufferConfig config = smallest_config(profile);
    const int64_t needed = *mega_moe_ccl_buffer_size(2, config);
    for (const int64_t less : {needed - 1, int64_t{1}, int64_t{-1}}) {
      config.ccl_buffer_size = less;
      EXPECT_EQ(*mega_moe_ccl_buffer_size(2, config), needed);
      test::on_local_ranks(2, [&](int, const Group& group) {
        const Status status = SymmBuffer::create(group, config).status();
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_EQ(status.message(), "rank 0: ccl_buffer_size = " + std::to_string(less) +
                                        ": expected 0 (automatic) or at least " + std::to_string(needed) +
                                        " bytes");
      });
    }
    for (const int64_t enough : {needed, needed + 1}) {
      config.ccl_buffer_size = enough;
      test::on_local_ranks(2, [&](int, const Group& group) {
        const auto buffer = SymmBuffer::create(group, config);
        ASSERT_TRUE(buffer) << buffer.status().message();
        EXPECT_EQ((*buffer)->ccl_buffer_size(), needed);
      });
    }
  }
}

}  // namespace
}  // namespace megamoe
