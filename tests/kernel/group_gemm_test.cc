// Every group kernel of the registry against plain loops in double: scales per group of K on both sides.
#include <cmath>
#include <cstring>
#include <random>

#include "format/bf16.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

constexpr int64_t kDepths[] = {1, 3, 31, 32, 33, 61, 64, 100, 128, 129, 250, 704};

/// A [rows][k] and B [k][32] as numbers that have codes in the family, and a scale for each group of both.
struct Problem {
  Problem(const Gemm& kernel, int most, int64_t depth, int64_t per_group, bool scaled, uint32_t seed)
      : gemm(kernel), rows(most), k(depth), group(per_group), groups(groups_of(depth, per_group)) {
    std::mt19937 random(seed);
    const auto draw = [&](std::vector<float>& codes, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const int code = static_cast<int>(random() % 256) - 128;
        codes.push_back(is_s8() ? static_cast<float>(code) : static_cast<float>(code) / 16);
      }
    };
    draw(a, rows * k);
    draw(b, k * kPanelColumns);
    for (int64_t i = 0; i < groups * kPanelColumns; ++i)
      scales.push_back(0.5f + static_cast<float>(random() % 1000) / 700.f);
    for (int64_t i = 0; scaled && i < rows * groups; ++i) {
      const float power = std::ldexp(1.0f, static_cast<int>(random() % 30) - 15);
      row_scales.push_back(is_s8() ? power : power * (1.0f + static_cast<float>(random() % 100) / 100.f));
    }
  }

  bool is_s8() const { return gemm.family == Family::kS8; }
  size_t code_bytes() const { return is_s8() ? 1 : 2; }
  void put(unsigned char* at, float code) const {
    if (is_s8()) {
      *at = static_cast<unsigned char>(static_cast<int8_t>(code));
    } else {
      const uint16_t bits = format::bf16_from_float(code);
      std::memcpy(at, &bits, sizeof bits);
    }
  }

  /// Runs rows [first, first + count) as one tile; returns [count][32] values.
  std::vector<float> run(int first, int count) const {
    const size_t stride = static_cast<size_t>(k + 3) * code_bytes();  // a gap between rows
    Guarded<unsigned char> codes(stride * static_cast<size_t>(count));
    std::memset(codes.data(), 0xff, stride * static_cast<size_t>(count));
    for (int r = 0; r < count; ++r) {
      for (int64_t i = 0; i < k; ++i)
        put(codes.data() + r * stride + i * code_bytes(), a[(first + r) * k + i]);
    }
    Guarded<unsigned char> panel(static_cast<size_t>(panel_bytes(gemm.family, k)));
    std::memset(panel.data(), 0, static_cast<size_t>(panel_bytes(gemm.family, k)));
    Guarded<int32_t> sums(static_cast<size_t>(groups * kPanelColumns));
    std::memset(sums.data(), 0, static_cast<size_t>(groups * kPanelColumns) * sizeof(int32_t));
    const int per_dword = k_per_dword(gemm.family);
    for (int64_t i = 0; i < k; ++i) {
      for (int c = 0; c < kPanelColumns; ++c) {
        const float code = b[i * kPanelColumns + c];
        put(panel.data() + (i / per_dword * kPanelColumns + c) * 4 + i % per_dword * code_bytes(), code);
        if (is_s8()) sums[i / group * kPanelColumns + c] += static_cast<int32_t>(code);
      }
    }
    Guarded<unsigned char> packed(gemm.packed_bytes(count, k));
    PackRows pack{codes.data(), static_cast<ptrdiff_t>(stride), count, k, packed.data()};
    pack.group = group;
    if (!row_scales.empty()) {
      pack.scales = row_scales.data() + first * groups;
      pack.scale_bytes = static_cast<ptrdiff_t>(groups * sizeof(float));
    }
    gemm.pack_rows(pack);
    Guarded<float> c(static_cast<size_t>(count) * kPanelColumns);
    Tile tile{packed.data(), count, k, panel.data(), is_s8() ? sums.data() : nullptr, c.data(), nullptr, 0};
    tile.group = group;
    tile.row_scaled = !row_scales.empty();
    tile.group_scales = scales.data();
    gemm.tile(tile);
    EXPECT_TRUE(packed.intact() && c.intact() && codes.intact() && panel.intact() && sums.intact());
    return std::vector<float>(c.data(), c.data() + count * kPanelColumns);
  }

  /// Checks all rows of `result` against double sums.
  void check(const std::vector<float>& result, int count) const {
    for (int r = 0; r < count; ++r) {
      for (int c = 0; c < kPanelColumns; ++c) {
        double sum = 0, magnitude = 0, inside = 0;
        for (int64_t g = 0; g < groups; ++g) {
          double part = 0, size = 0;
          for (int64_t i = g * group; i < std::min(k, (g + 1) * group); ++i) {
            part += double{a[r * k + i]} * double{b[i * kPanelColumns + c]};
            size += std::fabs(double{a[r * k + i]} * double{b[i * kPanelColumns + c]});
          }
          const double factor = double{scales[g * kPanelColumns + c]} *
                                (row_scales.empty() ? 1.0 : double{row_scales[r * groups + g]});
          sum += part * factor;
          magnitude += std::fabs(part * factor);
          inside += size * factor;
        }
        // Groups of s8 are exact; a group of bf16 rounds once per product. Then two roundings per group.
        const double bound = magnitude * 0x1p-23 * static_cast<double>(groups + 1) +
                             (is_s8() ? 0.0 : inside * 0x1p-24 * static_cast<double>(group));
        ASSERT_NEAR(result[r * kPanelColumns + c], sum, bound)
            << "row " << r << " column " << c << " k " << k << " group " << group;
      }
    }
  }

  const Gemm& gemm;
  int rows;
  int64_t k, group, groups;
  std::vector<float> a, b, scales, row_scales;
};

class GroupGemmTest : public testing::TestWithParam<const Gemm*> {
 protected:
  void SetUp() override { SKIP_UNLESS_GEMM_RUNS(*GetParam()); }
  const Gemm& gemm() const { return *GetParam(); }
};

TEST_P(GroupGemmTest, MatchesPlainLoops) {
  for (const int64_t k : kDepths) {
    for (const int64_t group : kGroupSizes) {
      for (const bool scaled : {false, true}) {
        const Problem problem(gemm(), gemm().max_rows, k, group, scaled, static_cast<uint32_t>(k));
        for (int rows = 1; rows <= gemm().max_rows; ++rows) problem.check(problem.run(0, rows), rows);
      }
    }
  }
}

// One product of one group is the whole sum: it comes out as the scales say, to the last bit.
TEST_P(GroupGemmTest, OneGroupHasTwoRoundings) {
  for (const int64_t group : kGroupSizes) {
    const Problem problem(gemm(), gemm().max_rows, 1, group, true, 9);
    const std::vector<float> result = problem.run(0, problem.rows);
    for (int r = 0; r < problem.rows; ++r) {
      for (int c = 0; c < kPanelColumns; ++c) {
        ASSERT_EQ(result[r * kPanelColumns + c],
                  problem.a[r] * problem.b[c] * problem.row_scales[r] * problem.scales[c]);
      }
    }
  }
}

// The largest codes of both sides over a whole group, and a scale that shows each unit of the sum.
TEST_P(GroupGemmTest, ExtremeCodesAreExact) {
  for (const int64_t group : kGroupSizes) {
    for (const float x : {-128.0f, 127.0f}) {
      for (const float w : {-127.0f, 127.0f}) {
        Problem problem(gemm(), gemm().max_rows, group, group, false, 1);
        for (float& code : problem.a) code = x;
        for (float& code : problem.b) code = w;
        for (float& scale : problem.scales) scale = 1.0f;
        for (const float value : problem.run(0, problem.rows))
          ASSERT_EQ(value, x * w * static_cast<float>(group));
      }
    }
  }
}

// The same bits for a row alone or anywhere in a tile, also beside rows whose scales are NaN or infinite.
TEST_P(GroupGemmTest, RowDoesNotDependOnItsTile) {
  for (const int64_t group : kGroupSizes) {
    Problem problem(gemm(), gemm().max_rows, 250, group, true, 17);
    std::vector<std::vector<float>> alone;
    for (int r = 0; r < problem.rows; ++r) alone.push_back(problem.run(r, 1));
    for (int count = 1; count <= problem.rows; ++count) {
      for (int first = 0; first + count <= problem.rows; ++first) {
        const std::vector<float> tile = problem.run(first, count);
        for (int r = 0; r < count; ++r) {
          ASSERT_EQ(0, std::memcmp(&tile[r * kPanelColumns], alone[first + r].data(), 4 * kPanelColumns));
        }
      }
    }
    problem.row_scales[0] = NAN;
    problem.row_scales[problem.groups * (problem.rows - 1)] = 0x1p127f;
    const std::vector<float> tile = problem.run(0, problem.rows);
    for (int c = 0; c < kPanelColumns; ++c) EXPECT_TRUE(std::isnan(tile[c]));
    for (int r = 1; r + 1 < problem.rows; ++r) {
      ASSERT_EQ(0, std::memcmp(&tile[r * kPanelColumns], alone[r].data(), 4 * kPanelColumns));
    }
  }
}

// Row scales at both ends of the float range, subnormal ones too, lose nothing against column scales that
// bring the product back.
TEST_P(GroupGemmTest, ScalesOfAnySizeAreExact) {
  constexpr int kExponents[] = {-149, -140, -129, -126, -100, 0, 90, 104, 105, 110};
  for (const int exponent : kExponents) {
    Problem problem(gemm(), gemm().max_rows, 32, 32, true, 5);
    for (float& scale : problem.row_scales) scale = std::ldexp(1.0f, exponent);
    for (float& scale : problem.scales) scale = exponent < 0 ? 0x1p100f : 0x1p-100f;
    for (float& code : problem.a) code = std::floor(code / 16);
    for (float& code : problem.b) code = std::floor(code / 16);
    const std::vector<float> result = problem.run(0, problem.rows);
    for (int r = 0; r < problem.rows; ++r) {
      for (int c = 0; c < kPanelColumns; ++c) {
        double sum = 0;
        for (int64_t i = 0; i < 32; ++i)
          sum += double{problem.a[r * 32 + i]} * double{problem.b[i * kPanelColumns + c]};
        ASSERT_EQ(result[r * kPanelColumns + c], std::ldexp(sum, exponent + (exponent < 0 ? 100 : -100)))
            << "2^" << exponent;
      }
    }
  }
}

TEST_P(GroupGemmTest, ColumnScalesOfNanZeroAndInfinityStayInTheirColumn) {
  Problem problem(gemm(), gemm().max_rows, 100, 32, false, 3);
  const std::vector<float> plain = problem.run(0, problem.rows);
  problem.scales[3] = NAN;
  problem.scales[kPanelColumns + 5] = INFINITY;
  for (int64_t g = 0; g < problem.groups; ++g) problem.scales[g * kPanelColumns + 7] = 0.0f;
  const std::vector<float> result = problem.run(0, problem.rows);
  for (int r = 0; r < problem.rows; ++r) {
    const float* row = result.data() + r * kPanelColumns;
    EXPECT_TRUE(std::isnan(row[3]));
    EXPECT_FALSE(std::isfinite(row[5]));
    EXPECT_EQ(row[7], 0.0f);
    for (const int c : {0, 1, 2, 4, 6, 8, 31}) ASSERT_EQ(row[c], plain[r * kPanelColumns + c]);
  }
}

TEST(GroupGemmRegistry, EachLevelGetsTheHighestKernelNotAboveIt) {
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    for (const Family family : {Family::kBf16, Family::kS8}) {
      const Gemm& chosen = group_gemm_for(family, isa);
      EXPECT_EQ(chosen.family, family);
      EXPECT_LE(chosen.isa, isa);
      const std::string name = (family == Family::kBf16 ? "bf16_groups_" : "s8_groups_") +
                               std::to_string(chosen.max_rows) + "x32_" + isa_name(chosen.isa);
      EXPECT_EQ(chosen.name, name);
      for (const Gemm* other : all_group_gemms()) {
        if (other->family == family && other->isa <= isa) {
          EXPECT_LE(other->isa, chosen.isa) << other->name;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GroupGemmTest,
                         testing::ValuesIn(all_group_gemms().begin(), all_group_gemms().end()),
                         gemm_test_name);

}  // namespace
}  // namespace megamoe::kernel
