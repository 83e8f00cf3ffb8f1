// Every parameter of the operator documents at and past the limits of every profile, as a table.
#include <gtest/gtest.h>

#include <string>

#include "moe/limits.h"
#include "support/layer.h"

namespace megamoe {
namespace {

/// The smallest legal settings of a profile that leave room to move.
BufferConfig smallest_config(const std::string& profile) {
  BufferConfig c;
  c.profile = profile;
  c.num_experts = 2;
  c.num_max_tokens_per_rank = 8;
  c.num_topk = 2;
  c.hidden = 1024;
  c.intermediate_hidden = 512;
  if (profile == "cpu") c.hidden = c.intermediate_hidden = 64;
  if (profile == "ascend_a2_a3") {
    c.dispatch_quant_mode = 2;
    c.dispatch_quant_out_dtype = DType::kInt8;
  } else if (profile != "cpu") {
    c.dispatch_quant_mode = 4;
    c.dispatch_quant_out_dtype = DType::kFloat8E4M3;
  }
  if (profile == "mega_moe_v1") {
    c.num_experts = 6;
    c.num_topk = 6;
    c.hidden = 4096;
  }
  return c;
}

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
        EXPECT_EQ(status.message(), "ccl_buffer_size = " + std::to_string(less) +
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
