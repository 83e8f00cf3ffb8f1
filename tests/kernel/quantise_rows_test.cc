// Every quantisation rule on every level against the reference, bit for bit: all bfloat16 and float16 values
// in changing company, odd lengths, smooth scales, and the inverses of all codes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "format/packed.h"
#include "format/table.h"
#include "kernel/levels.h"
#include "reference/quantise.h"

namespace megamoe::kernel {
namespace {

using quant::RuleInfo;
using reference::QuantisedRow;

/// A row of bfloat16, float16 or float32 codes and its values.
struct Row {
  DType input;
  std::vector<uint32_t> codes;

  std::vector<float> values() const {
    std::vector<float> result;
    for (uint32_t code : codes) result.push_back(format::find_format(input)->decode(code));
    return result;
  }
};

std::vector<uint8_t> packed_codes(const RuleInfo& info, const std::vector<uint8_t>& codes) {
  std::vector<uint8_t> row(static_cast<size_t>(info.code_bytes(static_cast<int64_t>(codes.size()))));
  for (size_t i = 0; i < codes.size(); ++i) {
    format::write_code(row.data(), dtype_bits(info.codes), static_cast<int64_t>(i), codes[i]);
  }
  return row;
}

std::vector<uint8_t> scale_bytes(const QuantisedRow& row) {
  if (row.scale_type != DType::kFloat32) return row.scale_bytes;
  std::vector<uint8_t> bytes(row.scales.size() * sizeof(float));
  if (!bytes.empty()) std::memcpy(bytes.data(), row.scales.data(), bytes.size());
  return bytes;
}

/// Equal bytes; any NaN scale equals any NaN scale.
bool same_scales(const RuleInfo& info, const uint8_t* got, const std::vector<uint8_t>& want) {
  if (info.scales != DType::kFloat32) return std::equal(want.begin(), want.end(), got);
  for (size_t i = 0; i < want.size(); i += sizeof(float)) {
    float a, b;
    std::memcpy(&a, got + i, sizeof(float));
    std::memcpy(&b, want.data() + i, sizeof(float));
    if (std::memcmp(&a, &b, sizeof(float)) != 0 && !(std::isnan(a) && std::isnan(b))) return false;
  }
  return true;
}

void expect_as_reference(const RowOps& ops, const RuleInfo& info, const Row& row,
                         const reference::QuantiseArguments& arguments = {}) {
  const auto n = static_cast<int64_t>(row.codes.size());
  const int bits = dtype_bits(row.input);
  Guarded<uint8_t> x(static_cast<size_t>(n * bits / 8)), codes(static_cast<size_t>(info.code_bytes(n)));
  Guarded<uint8_t> scales(static_cast<size_t>(info.scale_bytes(n)));
  Guarded<float> smooth(arguments.smooth.size());
  for (int64_t i = 0; i < n; ++i) format::write_code(x.data(), bits, i, row.codes[static_cast<size_t>(i)]);
  std::copy(arguments.smooth.begin(), arguments.smooth.end(), smooth.data());
  ops.quantise[static_cast<int>(info.id)]({x.data(), row.input, n,
                                           arguments.smooth.empty() ? nullptr : smooth.data(),
                                           arguments.scale, arguments.offset, codes.data(), scales.data()});
  ASSERT_TRUE(codes.intact() && scales.intact()) << info.name << " n = " << n;

  Result<QuantisedRow> want = reference::quantise_row(info.name, row.values(), arguments);
  ASSERT_TRUE(want);
  const std::vector<uint8_t> want_codes = packed_codes(info, want->codes);
  for (size_t i = 0; i < want_codes.size(); ++i) {
    ASSERT_EQ(codes[i], want_codes[i])
        << info.name << " " << dtype_name(row.input) << " byte " << i << " of n = " << n << ", value "
        << row.values()[i * static_cast<size_t>(8 / dtype_bits(info.codes))];
  }
  const std::vector<uint8_t> want_scales = scale_bytes(*want);
  ASSERT_EQ(static_cast<int64_t>(want_scales.size()), info.scale_bytes(n)) << info.name;
  ASSERT_TRUE(same_scales(info, scales.data(), want_scales))
      << info.name << " n = " << n << ", first scale " << testing::PrintToString(want->scales);
}

constexpr int64_t kLengths[] = {0,  1,  2,  3,  7,   8,   15,  16,  17,  31,  32,  33,  47,
                                63, 64, 65, 96, 100, 127, 128, 129, 160, 255, 256, 257, 300};

template <class F>
void for_each_rule_and_half(F f) {
  for (const RuleInfo& info : quant::rules()) {
    for (DType input : {DType::kBFloat16, DType::kFloat16}) {
      if (info.accepts(input)) f(info, input);
    }
  }
}

reference::QuantiseArguments arguments_of(const RuleInfo& info) {
  reference::QuantiseArguments arguments;
  if (info.takes(RuleInfo::kScale)) arguments.scale = 0.37f;
  if (info.takes(RuleInfo::kOffset)) arguments.offset = -3.25f;
  return arguments;
}

class QuantiseRowsTest : public RowOpsTest {};

// Alone among zeros a value decides the scale of its group.
TEST_P(QuantiseRowsTest, EveryValueAlone) {
  for_each_rule_and_half([&](const RuleInfo& info, DType input) {
    for (uint32_t code = 0; code < 0x10000 && !HasFatalFailure(); ++code) {
      Row row{input, std::vector<uint32_t>(4, 0)};
      row.codes[code % 4] = code;
      expect_as_reference(ops(), info, row, arguments_of(info));
    }
  });
}

// Neighbours by value: groups of one magnitude.
TEST_P(QuantiseRowsTest, EveryValueAmongItsNeighbours) {
  for_each_rule_and_half([&](const RuleInfo& info, DType input) {
    for (uint32_t first = 0; first < 0x10000 && !HasFatalFailure(); first += 0x80) {
      Row row{input, std::vector<uint32_t>(0x80)};
      std::iota(row.codes.begin(), row.codes.end(), first);
      expect_as_reference(ops(), info, row, arguments_of(info));
    }
  });
}

// Every value that is not larger than a companion, under the companion's scale.
TEST_P(QuantiseRowsTest, EveryValueUnderALargerOne) {
  for_each_rule_and_half([&](const RuleInfo& info, DType input) {
    for (float companion : {0.0f, 1e-4f, 1.0f, 1.75f, 1.765625f, 448.0f, 450.0f, 6e4f}) {
      const uint32_t largest = format::find_format(input)->encode(companion, true);
      Row row{input, {}};
      for (uint32_t sign : {0u, 0x8000u}) {
        for (uint32_t code = 0; code <= largest; ++code) row.codes.push_back(code | sign);
      }
      // One companion in every 32 columns; the row is split so that no part is long.
      for (size_t i = 0; i < row.codes.size(); i += 31) row.codes[i] = largest;
      row.codes.resize(row.codes.size() / 2 * 2);
      expect_as_reference(ops(), info, row, arguments_of(info));
      if (HasFatalFailure()) return;
    }
  });
}

TEST_P(QuantiseRowsTest, AllValuesShuffledInRowsOfEveryLength) {
  std::mt19937 random(7);
  for_each_rule_and_half([&](const RuleInfo& info, DType input) {
    std::vector<uint32_t> all(0x10000);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    size_t at = 0;
    for (size_t round = 0; at < all.size() && !HasFatalFailure(); ++round) {
      int64_t n = kLengths[round % std::size(kLengths)];
      if (info.even_columns()) n = n / 2 * 2;
      n = std::min(n, static_cast<int64_t>(all.size() - at));
      const auto begin = all.begin() + static_cast<int64_t>(at);
      expect_as_reference(ops(), info, {input, {begin, begin + n}}, arguments_of(info));
      at += static_cast<size_t>(n);
    }
  });
}

// Groups without infinity and NaN, of a few neighbouring binades.
TEST_P(QuantiseRowsTest, GroupsOfCloseMagnitudes) {
  std::mt19937 random(11);
  for_each_rule_and_half([&](const RuleInfo& info, DType input) {
    const uint32_t infinity = input == DType::kBFloat16 ? 0x7f80 : 0x7c00;
    for (int round = 0; round < 400 && !HasFatalFailure(); ++round) {
      int64_t n = kLengths[static_cast<size_t>(round) % std::size(kLengths)];
      if (info.even_columns()) n = n / 2 * 2;
      const uint32_t top = random() % infinity;
      Row row{input, {}};
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t down = random() % 0x500;
        row.codes.push_back((top > down ? top - down : 0) | (random() & 1) << 15);
      }
      expect_as_reference(ops(), info, row, arguments_of(info));
    }
  });
}

// Rows of several blocks of groups: ordinary ones, ones with subnormal codes or zeros, small or special ones.
TEST_P(QuantiseRowsTest, LongRowsOfChangingGroups) {
  std::mt19937 random(19);
  std::normal_distribution<float> normal;
  for_each_rule_and_half([&](const RuleInfo& info, DType input) {
    for (int64_t n : {126, 128, 160, 510, 512, 544, 640, 1000, 2048, 2080, 2176, 2880, 4128, 4768}) {
      for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
        Row row{input, {}};
        const auto infinity = static_cast<uint32_t>(input == DType::kBFloat16 ? 0x7f80 : 0x7c00);
        float size = 1, spread = 0;
        for (int64_t i = 0; i < n; ++i) {
          if (i % 32 == 0) {
            // The early rounds have ordinary groups only.
            size = std::ldexp(1.0f, static_cast<int>(random() % 20) - 10);
            spread = random() % 4 == 0 ? 20.0f : 1.0f;
            if (round > 3 && random() % 64 == 0) size = 0x1p-120f;
          }
          const float value = normal(random) * size * std::exp2(-spread * std::fabs(normal(random)));
          uint32_t code = format::find_format(input)->encode(value, true);
          if (round % 2 == 1 && random() % 8 == 0) code &= 0x8000;
          if (round > 7 && random() % 1024 == 0) code = infinity + random() % 2;
          row.codes.push_back(code);
        }
        expect_as_reference(ops(), info, row, arguments_of(info));
      }
    }
  });
}

TEST_P(QuantiseRowsTest, FloatRowsAndSmoothScales) {
  std::mt19937 random(13);
  std::normal_distribution<float> normal;
  for (const RuleInfo& info : quant::rules()) {
    for (DType input : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      if (!info.accepts(input) || (input != DType::kFloat32 && !info.takes(RuleInfo::kSmooth))) continue;
      for (int round = 0; round < 300 && !HasFatalFailure(); ++round) {
        int64_t n = kLengths[static_cast<size_t>(round) % std::size(kLengths)];
        if (info.even_columns()) n = n / 2 * 2;
        Row row{input, {}};
        reference::QuantiseArguments arguments = arguments_of(info);
        const float size = std::ldexp(1.0f, round % 3 == 0 ? static_cast<int>(random() % 290) - 150 : 0);
        for (int64_t i = 0; i < n; ++i) {
          // Every third round holds any bits at all, NaN among them.
          const uint32_t code = round % 3 == 2
                                    ? static_cast<uint32_t>(random())
                                    : format::find_format(input)->encode(normal(random) * size, true);
          row.codes.push_back(dtype_bits(input) == 16 ? code & 0xffff : code);
          if (info.takes(RuleInfo::kSmooth) && round % 2 == 0) arguments.smooth.push_back(normal(random));
        }
        expect_as_reference(ops(), info, row, arguments);
      }
    }
  }
}

TEST_P(QuantiseRowsTest, InverseOfEveryCodeAndScale) {
  std::mt19937 random(17);
  for (const RuleInfo& info : quant::rules()) {
    for (int round = 0; round < 260 && !HasFatalFailure(); ++round) {
      int64_t n = kLengths[static_cast<size_t>(round) % std::size(kLengths)];
      if (info.even_columns()) n = n / 2 * 2;
      QuantisedRow row;
      row.scale_type = info.scales;
      const uint32_t mask = dtype_bits(info.codes) == 4 ? 15 : 255;
      for (int64_t i = 0; i < n; ++i) row.codes.push_back(static_cast<uint8_t>((random() + i) & mask));
      for (int64_t i = 0; i < info.scale_columns(n); ++i) {
        row.scale_bytes.push_back(static_cast<uint8_t>(round < 256 ? round : 0));
        row.scales.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
      }
      if (info.scales == DType::kFloat32) row.scale_bytes.clear();
      reference::QuantiseArguments arguments = arguments_of(info);
      Result<std::vector<float>> want = reference::dequantise_row(info.name, row, arguments);
      ASSERT_TRUE(want);
      const std::vector<uint8_t> codes = packed_codes(info, row.codes), scales = scale_bytes(row);
      Guarded<uint8_t> code_row(codes.size()), scale_row(scales.size());
      Guarded<float> out(static_cast<size_t>(n));
      std::copy(codes.begin(), codes.end(), code_row.data());
      std::copy(scales.begin(), scales.end(), scale_row.data());
      ops().dequantise[static_cast<int>(info.id)](
          {code_row.data(), scale_row.data(), n, arguments.scale, arguments.offset, out.data()});
      ASSERT_TRUE(out.intact()) << info.name;
      for (size_t i = 0; i < want->size(); ++i) {
        const float a = out[i], b = (*want)[i];
        ASSERT_TRUE(std::memcmp(&a, &b, sizeof(float)) == 0 || (std::isnan(a) && std::isnan(b)))
            << info.name << " code " << int{row.codes[i]} << ": " << a << " and " << b;
      }
    }
  }
}

INSTANTIATE_ROW_OPS(QuantiseRowsTest);

TEST(QuantRules, SizesOfRows) {
  const RuleInfo& mx = *quant::find_rule("mx_floor_e2m1");
  EXPECT_EQ(mx.groups(70), 3);
  EXPECT_EQ(mx.scale_columns(70), 4);
  EXPECT_EQ(mx.scale_bytes(70), 4);
  EXPECT_EQ(mx.code_bytes(70), 35);
  EXPECT_TRUE(mx.even_columns());
  const RuleInfo& block = *quant::find_rule("fp8_block128_e4m3");
  EXPECT_EQ(block.scale_columns(300), 4);
  EXPECT_EQ(block.scale_bytes(300), 16);
  EXPECT_EQ(quant::find_rule("fp8_group128_e4m3")->scale_columns(300), 3);
  EXPECT_EQ(quant::find_rule("int8_per_token")->scale_columns(300), 1);
  EXPECT_EQ(quant::find_rule("hif8_cast")->scale_columns(300), 0);
  EXPECT_EQ(quant::find_rule("nothing"), nullptr);
  for (const RuleInfo& info : quant::rules())
    EXPECT_EQ(quant::find_rule(info.name), &quant::rule_info(info.id));
}

}  // namespace
}  // namespace megamoe::kernel
