// Offsets of a segment: no overlap, alignment, exact sizes, refusal of what does not fit.
#include "comm/layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/exchange.h"

namespace megamoe::comm {
namespace {

LayoutInput typical() {
  LayoutInput input;
  input.ranks = 4;
  input.experts = 13;
  input.experts_per_rank = 4;
  input.max_tokens = 33;
  input.topk = 3;
  input.capacity = 101;
  input.block_rows = 16;
  input.code_row_bytes = 70;
  input.scale_row_bytes = 5;
  input.slot_row_bytes = 130;
  return input;
}

TEST(SymmLayout, PartsFollowEachOtherOnCacheLines) {
  for (int64_t capacity : {0, 1, 15, 16, 101, 4096}) {
    for (int64_t tokens : {0, 1, 33}) {
      LayoutInput input = typical();
      input.capacity = capacity;
      input.max_tokens = tokens;
      const Result<SymmLayout> made = SymmLayout::make(input);
      ASSERT_TRUE(made.is_ok()) << made.status().message();
      const SymmLayout& l = made.value();
      const auto rows = static_cast<size_t>(capacity);
      const std::pair<size_t, size_t> parts[] = {
          {l.header, 4096},
          {l.records, 2 * 4 * l.record_bytes},
          {l.arrived, static_cast<size_t>(l.max_blocks()) * 4},
          {l.codes, rows * 128},
          {l.scales, rows * 5},
          {l.weights, rows * 4},
          {l.homes, rows * sizeof(RowHome)},
          {l.slots, static_cast<size_t>(tokens) * 3 * 192},
          {l.done, static_cast<size_t>(tokens) * 4},
          {l.total, 0},
      };
      for (size_t i = 0; i + 1 < std::size(parts); ++i) {
        EXPECT_EQ(parts[i].first % 64, 0u);
        EXPECT_LE(parts[i].first + parts[i].second, parts[i + 1].first) << i;
        if (i + 2 < std::size(parts)) {
          EXPECT_LT(parts[i + 1].first, parts[i].first + parts[i].second + 64) << i;
        }
      }
      EXPECT_EQ(l.total % 4096, 0u);
      EXPECT_LT(l.total, l.done + static_cast<size_t>(tokens) * 4 + 64 + 4096);
    }
  }
}

TEST(SymmLayout, RecordsOfTwoGenerationsDoNotOverlap) {
  const SymmLayout layout = SymmLayout::make(typical()).value();
  EXPECT_EQ(layout.record_bytes, record_bytes(13));
  EXPECT_EQ(layout.record_bytes % 64, 0u);
  EXPECT_GE(layout.record_bytes, 512 + 13 * sizeof(uint32_t));
  EXPECT_EQ(layout.record(2, 0), layout.records);
  EXPECT_EQ(layout.record(2, 3), layout.records + 3 * layout.record_bytes);
  EXPECT_EQ(layout.record(3, 0), layout.records + 4 * layout.record_bytes);
  EXPECT_EQ(layout.record(5, 2), layout.record(3, 2));
  EXPECT_LE(layout.record(1, 3) + layout.record_bytes, layout.arrived);
}

TEST(SymmLayout, SizesBeyond32BitsAreExact) {
  LayoutInput input = typical();
  input.capacity = 299594;
  input.code_row_bytes = 7168;
  input.max_tokens = 1 << 20;
  input.slot_row_bytes = 14336;
  const SymmLayout layout = SymmLayout::make(input).value();
  EXPECT_EQ(layout.scales - layout.codes, size_t{299594} * 7168);
  EXPECT_EQ(layout.done - layout.slots, (size_t{1} << 20) * 3 * 14336);
}

TEST(SymmLayout, OverflowIsAnErrorWithTheSizes) {
  LayoutInput input = typical();
  input.capacity = int64_t{1} << 40;
  input.code_row_bytes = int64_t{1} << 30;
  EXPECT_EQ(
      SymmLayout::make(input).status().message(),
      "symmetric memory: codes = 1099511627776 x 1073741824 bytes after 274877915712 bytes: expected less "
      "than 2^63 bytes in all");
  input = typical();
  input.max_tokens = int64_t{1} << 60;
  input.topk = 8;
  EXPECT_EQ(SymmLayout::make(input).status().code(), Code::kInvalidArgument);
  input = typical();
  input.ranks = std::numeric_limits<int32_t>::max();
  input.experts = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(SymmLayout::make(input).status().code(), Code::kInvalidArgument);
}

TEST(SymmLayout, EachFieldIsChecked) {
  const auto message = [](auto member, int64_t value) {
    LayoutInput input = typical();
    input.*member = value;
    return SymmLayout::make(input).status().message();
  };
  EXPECT_EQ(message(&LayoutInput::ranks, 0), "ranks = 0: expected a value in [1, 2147483647]");
  EXPECT_EQ(message(&LayoutInput::block_rows, 0),
            "block_rows = 0: expected a value in [1, 1152921504606846976]");
  const std::pair<const char*, int64_t LayoutInput::*> fields[] = {
      {"experts", &LayoutInput::experts},
      {"experts_per_rank", &LayoutInput::experts_per_rank},
      {"max_tokens", &LayoutInput::max_tokens},
      {"topk", &LayoutInput::topk},
      {"capacity", &LayoutInput::capacity},
      {"code_row_bytes", &LayoutInput::code_row_bytes},
      {"scale_row_bytes", &LayoutInput::scale_row_bytes},
      {"slot_row_bytes", &LayoutInput::slot_row_bytes},
  };
  for (const auto& [name, member] : fields) {
    EXPECT_EQ(message(member, -1).find(std::string(name) + " = -1: expected a value in [0, "), 0u) << name;
    EXPECT_NE(message(member, std::numeric_limits<int64_t>::max()), "") << name;
  }
}

}  // namespace
}  // namespace megamoe::comm
