// The size of a buffer: exact, refused where it overflows, and what a given size must have.
#include <gtest/gtest.h>

#include <string>

#include "limit_setup.h"

namespace megamoe {
namespace {

using test::smallest_config;

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
  for (const char* profile : {"cpu", "ascend_a2_a3", "ascend_950", "mega_moe_v1"}) {
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
