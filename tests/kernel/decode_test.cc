// Stored panels to strips on every level against the definition of each code, for every range of k.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "format/float4_e2m1.h"
#include "format/float8_e4m3.h"
#include "format/float8_e5m2.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

constexpr int64_t kDepths[] = {1, 2, 31, 32, 33, 64, 100, 300};

float value_of(WeightCode code, uint8_t bits) {
  switch (code) {
    case WeightCode::kE4M3:
      return format::e4m3_to_float(bits);
    case WeightCode::kE5M2:
      return format::e5m2_to_float(bits);
    default:
      return format::e2m1_to_float(bits);
  }
}

/// Code of k of a column among nibbles.
uint8_t nibble(const uint8_t* codes, int64_t k, int column) {
  return codes[(k / 8 * kPanelColumns + column) * 4 + k % 4] >> (k % 8 / 4 * 4) & 15;
}

/// A stored panel of random codes under scales from [lowest, highest], and what it stands for.
struct MxPanel {
  MxPanel(WeightCode code, int64_t k, int lowest, int highest, uint32_t seed)
      : code(code), stored(static_cast<size_t>(stored_panel_bytes(code, Family::kBf16, k))) {
    std::mt19937 random(seed);
    for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
    const int64_t groups = (k + kMxGroup - 1) / kMxGroup;
    for (int64_t g = 0; g < groups; ++g) {
      for (int c = 0; c < kPanelColumns; ++c) {
        group(g)[c] = static_cast<uint8_t>(
            lowest + static_cast<int>(random() % static_cast<uint32_t>(highest - lowest + 1)));
      }
      if (code == WeightCode::kE2M1) continue;
      // Codes past K are zero; those of whole pairs are decoded.
      for (int64_t i = g * kMxGroup; i < (g + 1) * kMxGroup; ++i) {
        if (i >= k) std::memset(group(g) + kPanelColumns * (1 + i % kMxGroup), 0, kPanelColumns);
        for (int c = 0; c < kPanelColumns; ++c) {
          uint8_t& byte = group(g)[kPanelColumns * (1 + i % kMxGroup) + c];
          if (byte == 0x80) byte = 0;
          // NaN of E4M3 stands under the scale NaN alone; groups without infinities have other ways.
          if (code == WeightCode::kE4M3 ? group(g)[c] != 255 : g % 3 != 1) {
            while ((byte & 0x7f) >= (code == WeightCode::kE4M3 ? 0x7f : 0x7c)) --byte;
          }
        }
      }
    }
  }
  uint8_t* group(int64_t g) {
    const int64_t bits = code == WeightCode::kE2M1 ? 4 : 8;
    return stored.data() + g * kPanelColumns * (1 + kMxGroup * bits / 8);
  }
  /// Rounded towards zero to bfloat16.
  uint16_t expected(int64_t k, int column) {
    uint8_t* const scales = group(k / kMxGroup);
    const int64_t i = k % kMxGroup;
    const uint8_t bits = code == WeightCode::kE2M1 ? nibble(scales + kPanelColumns, i, column)
                                                   : scales[kPanelColumns * (1 + i) + column];
    const double scale = scales[column] == 255 ? NAN : std::ldexp(1.0, scales[column] - 127);
    return static_cast<uint16_t>(
        __builtin_bit_cast(uint32_t, static_cast<float>(value_of(code, bits) * scale)) >> 16);
  }

  WeightCode code;
  std::vector<uint8_t> stored;
};

/// Ranges of scales: ordinary ones, all, just those of normal values, and both ends.
constexpr struct {
  int lowest, highest;
} kScales[] = {{120, 134}, {0, 255}, {17, 239}, {0, 20}, {0, 1}, {0, 254}, {235, 255}};

class DecodeTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { SKIP_UNLESS_RUNNABLE(GetParam()); }
};

TEST_P(DecodeTest, MxCodesTimesScales) {
  for (WeightCode code : {WeightCode::kE4M3, WeightCode::kE5M2, WeightCode::kE2M1}) {
    const DecodeFunction decode = decoder_for(Family::kBf16, code, GetParam());
    for (int64_t k : kDepths) {
      for (const auto& scales : kScales) {
        MxPanel panel(code, k, scales.lowest, scales.highest, static_cast<uint32_t>(k));
        for (int64_t begin = 0; begin < k; begin += kRangeStep) {
          for (int64_t count : {kRangeStep, k - begin}) {
            if (begin + count > k) continue;
            Guarded<uint16_t> strip(static_cast<size_t>(panel_bytes(Family::kBf16, count)) / 2);
            DecodePanel range{panel.stored.data(), count, strip.data()};
            range.k_begin = begin;
            decode(range);
            ASSERT_TRUE(strip.intact());
            for (int64_t i = 0; i < count; ++i) {
              for (int c = 0; c < kPanelColumns; ++c) {
                const uint16_t got = strip[static_cast<size_t>((i / 2 * kPanelColumns + c) * 2 + i % 2)];
                const uint16_t want = panel.expected(begin + i, c);
                const bool both_nan = (got & 0x7fff) > 0x7f80 && (want & 0x7fff) > 0x7f80;
                // A zero may lose its sign: it adds nothing to a sum either way.
                const bool both_zero = (got & 0x7fff) == 0 && (want & 0x7fff) == 0;
                ASSERT_TRUE(both_nan || both_zero || got == want)
                    << "code " << static_cast<int>(code) << " k " << begin + i << " of " << k << " column "
                    << c << ": " << std::hex << got << ", expected " << want;
              }
            }
          }
        }
      }
    }
  }
}

/// Whether the first `count` sums are the same; zeros of E2M1 may differ in their sign.
void expect_equal_sums(const uint32_t* want, const uint32_t* got, size_t count, const Gemm& gemm,
                       WeightCode code, int rows, int64_t k) {
  for (size_t i = 0; i < count; ++i) {
    const bool both_nan = gemm.family == Family::kBf16 && std::isnan(__builtin_bit_cast(float, want[i])) &&
                          std::isnan(__builtin_bit_cast(float, got[i]));
    // What is less than a normal number counts as zero, and one of E2M1 may have lost its sign.
    const bool both_zero = code == WeightCode::kE2M1 && ((want[i] | got[i]) & 0x7fffffff) == 0;
    ASSERT_TRUE(both_nan || both_zero || want[i] == got[i])
        << "code " << static_cast<int>(code) << " rows " << rows << " k " << k << " element " << i;
  }
}

/// Products of all row counts straight from the codes have the bits of a strip.
void expect_coded_tiles_equal_strips(const Gemm& gemm, WeightCode code, const void* stored, int64_t k,
                                     Isa isa) {
  const size_t element = gemm.family == Family::kBf16 ? 2 : 1;
  Guarded<unsigned char> strip(static_cast<size_t>(panel_bytes(gemm.family, k)));
  decoder_for(gemm.family, code, isa)({stored, k, strip.data()});
  for (int rows = 1; rows <= gemm.coded_rows[static_cast<int>(code)]; ++rows) {
    std::mt19937 random(static_cast<uint32_t>(rows));
    std::vector<uint16_t> a(static_cast<size_t>(rows * k));
    for (uint16_t& x : a) x = static_cast<uint16_t>(0x3f00 + random() % 256);
    Guarded<uint16_t> packed(gemm.packed_bytes(rows, k) / 2);
    gemm.pack_rows({a.data(), static_cast<ptrdiff_t>(element) * k, rows, k, packed.data()});
    Guarded<uint32_t> want(static_cast<size_t>(rows) * kPanelColumns);
    Guarded<uint32_t> got(static_cast<size_t>(rows) * kPanelColumns);
    std::vector<int32_t> sums(kPanelColumns);
    for (int32_t& sum : sums) sum = static_cast<int32_t>(random() % 1000);
    Tile tile{};
    tile.a = packed.data();
    tile.rows = rows;
    tile.k = k;
    tile.panel = strip.data();
    tile.column_sums = sums.data();
    tile.c = want.data();
    gemm.tile(tile);
    tile.panel = stored;
    tile.c = got.data();
    gemm.coded_tile[static_cast<int>(code)](tile);
    ASSERT_TRUE(got.intact());
    if (gemm.stream[static_cast<int>(code)].ahead > 0) {
      Guarded<uint32_t> streamed(static_cast<size_t>(rows) * kPanelColumns);
      tile.c = streamed.data();
      tile.ahead = 1024;
      tile.prefetch = reinterpret_cast<const std::byte*>(strip.data());
      gemm.coded_tile[static_cast<int>(code)](tile);
      EXPECT_TRUE(std::equal(got.data(), got.data() + rows * kPanelColumns, streamed.data()))
          << rows << " rows";
    }
    const auto values = static_cast<size_t>(rows) * kPanelColumns;
    expect_equal_sums(want.data(), got.data(), values, gemm, code, rows, k);
    if (gemm.kept_rows[static_cast<int>(code)] == 0) continue;
    // As the first of several tiles, then as one that comes after it.
    Guarded<std::byte> kept(static_cast<size_t>(kept_bytes(k)));
    std::memset(kept.data(), 0xff, static_cast<size_t>(kept_bytes(k)));
    tile.kept = kept.data();
    for (const bool decoded : {false, true}) {
      std::fill_n(got.data(), values, 0xffffffffu);
      tile.decoded = decoded;
      gemm.coded_tile[static_cast<int>(code)](tile);
      ASSERT_TRUE(got.intact() && kept.intact());
      expect_equal_sums(want.data(), got.data(), values, gemm, code, rows, k);
    }
  }
}

TEST_P(DecodeTest, CodedTilesEqualStrips) {
  const Gemm& gemm = gemm_for(Family::kBf16, GetParam());
  int codes = 0;
  for (WeightCode code : {WeightCode::kE4M3, WeightCode::kE5M2, WeightCode::kE2M1}) {
    if (gemm.coded_rows[static_cast<int>(code)] == 0) continue;
    ++codes;
    for (int64_t k : kDepths) {
      for (const auto& scales : kScales) {
        const MxPanel panel(code, k, scales.lowest, scales.highest, static_cast<uint32_t>(k));
        expect_coded_tiles_equal_strips(gemm, code, panel.stored.data(), k, GetParam());
      }
    }
  }
  if (codes == 0) GTEST_SKIP() << gemm.name << " has no coded tiles";
}

// Two panels at once, whatever the scales of each.
TEST_P(DecodeTest, PairedPanelsEqualSingleOnes) {
  const Gemm& gemm = gemm_for(Family::kBf16, GetParam());
  if (gemm.paired_rows[static_cast<int>(WeightCode::kE2M1)] == 0)
    GTEST_SKIP() << gemm.name << " takes one panel at a time";
  constexpr int64_t k = 96;
  for (WeightCode code : {WeightCode::kE4M3, WeightCode::kE5M2, WeightCode::kE2M1}) {
    const auto one_panel = static_cast<size_t>(stored_panel_bytes(code, Family::kBf16, k));
    for (const auto& first : kScales) {
      for (const auto& second : kScales) {
        std::vector<uint8_t> stored = MxPanel(code, k, first.lowest, first.highest, 1).stored;
        const MxPanel other(code, k, second.lowest, second.highest, 2);
        stored.insert(stored.end(), other.stored.begin(), other.stored.end());
        for (int rows = 1; rows <= gemm.paired_rows[static_cast<int>(code)]; ++rows) {
          const auto size = static_cast<size_t>(rows) * kPanelColumns;
          std::vector<uint16_t> a(static_cast<size_t>(rows * k), 0x3f80);
          for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<uint16_t>(a[i] + i * 37 % 128);
          Guarded<uint16_t> packed(gemm.packed_bytes(rows, k) / 2);
          gemm.pack_rows({a.data(), 2 * k, rows, k, packed.data()});
          Guarded<uint32_t> want(2 * size), got(2 * size);
          Tile tile{};
          tile.a = packed.data();
          tile.rows = rows;
          tile.k = k;
          for (size_t p = 0; p < 2; ++p) {
            tile.panel = stored.data() + p * one_panel;
            tile.c = want.data() + p * size;
            gemm.coded_tile[static_cast<int>(code)](tile);
          }
          tile.panel = stored.data();
          tile.c = got.data();
          tile.panels = 2;
          gemm.coded_tile[static_cast<int>(code)](tile);
          ASSERT_TRUE(got.intact());
          for (size_t i = 0; i < 2 * size; ++i) {
            const bool both_nan = std::isnan(__builtin_bit_cast(float, want[i])) &&
                                  std::isnan(__builtin_bit_cast(float, got[i]));
            ASSERT_TRUE(both_nan || want[i] == got[i])
                << "code " << static_cast<int>(code) << " rows " << rows << " element " << i;
          }
        }
      }
    }
  }
}

TEST_P(DecodeTest, CodedTilesOfInt4EqualStrips) {
  int kernels = 0;
  for (const Gemm* gemm : all_gemms()) {
    if (gemm->isa != GetParam() || !runnable(*gemm)) continue;
    if (gemm->coded_rows[static_cast<int>(WeightCode::kInt4)] == 0) continue;
    ++kernels;
    for (int64_t k : kDepths) {
      std::mt19937 random(static_cast<uint32_t>(k));
      std::vector<uint8_t> stored(static_cast<size_t>(stored_panel_bytes(WeightCode::kInt4, Family::kS8, k)));
      for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
      expect_coded_tiles_equal_strips(*gemm, WeightCode::kInt4, stored.data(), k, GetParam());
    }
  }
  if (kernels == 0) GTEST_SKIP() << "no kernel of this level reads int4";
}

TEST_P(DecodeTest, Int4CodesAsBytes) {
  const DecodeFunction decode = decoder_for(Family::kS8, WeightCode::kInt4, GetParam());
  for (int64_t k : kDepths) {
    std::mt19937 random(static_cast<uint32_t>(k));
    std::vector<uint8_t> stored(static_cast<size_t>(stored_panel_bytes(WeightCode::kInt4, Family::kS8, k)));
    for (uint8_t& byte : stored) byte = static_cast<uint8_t>(random());
    for (int64_t begin = 0; begin < k; begin += kRangeStep) {
      const int64_t count = std::min(4 * kRangeStep, k - begin);
      Guarded<int8_t> strip(static_cast<size_t>(panel_bytes(Family::kS8, count)));
      DecodePanel range{stored.data(), count, strip.data()};
      range.k_begin = begin;
      decode(range);
      ASSERT_TRUE(strip.intact());
      for (int64_t i = 0; i < count; ++i) {
        for (int c = 0; c < kPanelColumns; ++c) {
          const int code = nibble(stored.data(), begin + i, c);
          ASSERT_EQ(strip[static_cast<size_t>((i / 4 * kPanelColumns + c) * 4 + i % 4)],
                    code > 7 ? code - 16 : code)
              << "k " << begin + i << " column " << c;
        }
      }
    }
  }
}

TEST(Decode, LevelsUseTheirOwnWay) {
  const auto rows = [](Family family, WeightCode code) {
    return row_ops_for(Isa::kAvx512).decode[static_cast<int>(family)][static_cast<int>(code)];
  };
  for (WeightCode code : {WeightCode::kE4M3, WeightCode::kE5M2, WeightCode::kE2M1}) {
    EXPECT_EQ(decoder_for(Family::kBf16, code, Isa::kAvx512Vnni), rows(Family::kBf16, code));
    EXPECT_NE(decoder_for(Family::kBf16, code, Isa::kAvx512Bf16), rows(Family::kBf16, code));
  }
  EXPECT_NE(decoder_for(Family::kS8, WeightCode::kInt4, Isa::kAvx512Vnni),
            rows(Family::kS8, WeightCode::kInt4));
  EXPECT_EQ(decoder_for(Family::kBf16, WeightCode::kStrip, Isa::kAvx512Bf16), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Levels, DecodeTest,
                         testing::Values(Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni,
                                         Isa::kAvx512Bf16),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace megamoe::kernel
