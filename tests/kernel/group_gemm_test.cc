// Every group kernel of the registry, from strips and from codes, against plain loops in double: scales per
// group of K on both sides.
#include "kernel/group_problem.h"

#include <algorithm>

#include "base/cpu.h"

namespace megamoe::kernel {
namespace {

constexpr int64_t kDepths[] = {1, 3, 31, 32, 33, 61, 64, 100, 128, 129, 250, 704};

class GroupGemmTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override { SKIP_UNLESS_GEMM_RUNS(*GetParam().gemm); }
  const Way& way() const { return GetParam(); }
  bool any_scale() const { return way().code != WeightCode::kE2M1; }
};

TEST_P(GroupGemmTest, MatchesPlainLoops) {
  for (const int64_t k : kDepths) {
    for (const int64_t group : kGroupSizes) {
      for (const bool scaled : {false, true}) {
        const Problem problem(way(), k, group, scaled, static_cast<uint32_t>(k));
        for (int rows = 1; rows <= problem.rows; ++rows) problem.check(problem.run(0, rows), rows);
      }
    }
  }
}

// One product of one group is the whole sum: it comes out as the scales say, to the last bit.
TEST_P(GroupGemmTest, OneGroupHasTwoRoundings) {
  for (const int64_t group : kGroupSizes) {
    const Problem problem(way(), 1, group, true, 9);
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
    for (const bool negative : {true, false}) {
      for (const float sign : {-1.0f, 1.0f}) {
        Problem problem(way(), group, group, false, 1);
        if (problem.group != group) continue;
        const float most = problem.largest_of_rows();
        const float x = negative ? (most == 127 ? -128 : -most) : most;
        const float w = sign * problem.largest();
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
    Problem problem(way(), 250, group, true, 17);
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
    Problem problem(way(), 32, 32, true, 5);
    if (!any_scale() && exponent < -128) continue;  // below half the least that E8M0 has
    for (float& scale : problem.row_scales) scale = std::ldexp(1.0f, exponent);
    for (float& scale : problem.scales) scale = exponent < 0 ? 0x1p100f : 0x1p-100f;
    for (float& code : problem.a) code = std::floor(code / 16);
    if (way().code != WeightCode::kE2M1) {
      for (float& code : problem.b) code = std::floor(code / 16);
    }
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
  if (!any_scale()) GTEST_SKIP() << "its scales are powers of two";
  Problem problem(way(), 100, 32, false, 3);
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

// Every scale that E8M0 has, in the middle of others, comes out exactly or as NaN.
TEST_P(GroupGemmTest, ScalesOfE8M0AreExact) {
  if (any_scale()) GTEST_SKIP() << "it has other scales";
  for (int byte = 0; byte < 256; ++byte) {
    Problem problem(way(), 96, 32, true, 6);
    for (float& scale : problem.row_scales) scale = byte < 128 ? 0x1p100f : 0x1p-100f;
    for (float& scale : problem.scales) scale = byte < 128 ? 0x1p-100f : 0x1p100f;
    problem.scales[kPanelColumns + 5] = byte == 255 ? NAN : std::ldexp(1.0f, byte - 128);
    const std::vector<float> result = problem.run(0, problem.rows);
    if (byte != 255) problem.check(result, problem.rows);
    for (int r = 0; r < problem.rows; ++r) {
      EXPECT_EQ(std::isnan(result[r * kPanelColumns + 5]), byte == 255);
      EXPECT_TRUE(std::isfinite(result[r * kPanelColumns + 4]));
    }
  }
}

// The same in a later range of K.
TEST_P(GroupGemmTest, ScalesOfE8M0AreExactInEveryRange) {
  if (any_scale()) GTEST_SKIP() << "it has other scales";
  constexpr int64_t kDepth = 704, kOddGroup = 20;
  for (const int byte : {0, 1, 2, 100, 253, 254, 255}) {
    Problem problem(way(), kDepth, 32, true, 6);
    for (float& scale : problem.row_scales) scale = byte < 128 ? 0x1p100f : 0x1p-100f;
    for (float& scale : problem.scales) scale = byte < 128 ? 0x1p-100f : 0x1p100f;
    problem.scales[kOddGroup * kPanelColumns + 5] = byte == 255 ? NAN : std::ldexp(1.0f, byte - 128);
    const std::vector<float> result = problem.run(0, problem.rows);
    if (byte != 255) problem.check(result, problem.rows);
    for (int r = 0; r < problem.rows; ++r) {
      EXPECT_EQ(std::isnan(result[r * kPanelColumns + 5]), byte == 255);
      EXPECT_TRUE(std::isfinite(result[r * kPanelColumns + 4]));
    }
  }
}

// A scaled sum of one group that is no float is added before anything is rounded.
TEST_P(GroupGemmTest, ScaledSumsMayLeaveTheRangeOfFloat) {
  if (any_scale() || way().gemm->family != Family::kS8) GTEST_SKIP() << "its sums are rounded on the way";
  Problem problem(way(), 64, 32, true, 7);
  const auto sums = [&](float first, float second, float row_scale, float scale) {
    std::fill(problem.a.begin(), problem.a.end(), 0.0f);
    std::fill(problem.b.begin(), problem.b.end(), 1.0f);
    for (int r = 0; r < problem.rows; ++r) {
      std::fill_n(problem.a.begin() + r * 64, 32, first);
      std::fill_n(problem.a.begin() + r * 64 + 32, 32, second);
    }
    std::fill(problem.row_scales.begin(), problem.row_scales.end(), row_scale);
    std::fill(problem.scales.begin(), problem.scales.end(), scale);
    return problem.run(0, problem.rows);
  };
  // -2^127 + 2^128. 1.5 and 2.5 units of the least subnormal number: ties that go to the even one.
  for (const float value : sums(-4, 8, 0x1p50f, 0x1p70f)) ASSERT_EQ(value, 0x1p127f);
  for (const float value : sums(2, 1, 0x1p-100f, 0x1p-55f)) ASSERT_EQ(value, 0x1p-149f * 2);
  for (const float value : sums(2, 3, 0x1p-100f, 0x1p-55f)) ASSERT_EQ(value, 0x1p-149f * 2);
}

// Codes give the bits that a strip gives: in the same kernel, or where it has no strips in a lower one.
TEST_P(GroupGemmTest, CodesHaveTheBitsOfStrips) {
  if (way().code == WeightCode::kStrip) GTEST_SKIP() << "it is the strip";
  const Gemm& strips = way().gemm->tile != nullptr ? *way().gemm
                                                   : group_gemm_for(way().gemm->family, WeightCode::kStrip,
                                                                    std::min(way().gemm->isa, Isa::kAvx512));
  for (const int64_t k : {1, 100, 704}) {
    for (const int64_t group : kGroupSizes) {
      for (const uint32_t seed : {1u, 2u, 3u}) {
        const Problem coded(way(), k, group, true, seed);
        Problem strip(coded);
        strip.way = {&strips, WeightCode::kStrip};
        for (int rows = 1; rows <= coded.rows; ++rows) {
          const std::vector<float> got = coded.run(0, rows), want = strip.run(0, rows);
          for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << "k " << k << " rows " << rows;
        }
      }
    }
  }
}

// Two panels at once have the bits of each alone, whatever their zero points are.
TEST_P(GroupGemmTest, TwoPanelsHaveTheBitsOfEach) {
  const int most =
      way().code == WeightCode::kStrip ? 0 : way().gemm->paired_rows[static_cast<int>(way().code)];
  if (most == 0) GTEST_SKIP() << "it takes one panel at a time";
  for (const int64_t k : {1, 31, 100, 704}) {
    for (const int64_t group : kGroupSizes) {
      for (const uint32_t seed : {1u, 2u, 3u}) {
        const Problem one(way(), k, group, seed == 2, seed);
        Problem other(way(), k, group, seed == 2, seed + 3);
        other.a = one.a;
        other.row_scales = one.row_scales;
        for (int rows = 1; rows <= most; ++rows) {
          const std::vector<float> both = one.run(0, rows, &other);
          std::vector<float> each = one.run(0, rows);
          const std::vector<float> second = other.run(0, rows);
          each.insert(each.end(), second.begin(), second.end());
          ASSERT_EQ(both, each) << "k " << k << " group " << group << " rows " << rows << " seed " << seed;
        }
      }
    }
  }
}

TEST(GroupGemmRegistry, EachLevelGetsTheHighestKernelNotAboveIt) {
  const bool vnni = (base::this_cpu().features & base::kCpuAvxVnni) != 0;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    for (const Family family : {Family::kBf16, Family::kS8}) {
      for (const WeightCode code : {WeightCode::kStrip, WeightCode::kInt4Groups, WeightCode::kE2M1}) {
        const Gemm& chosen = group_gemm_for(family, code, isa);
        EXPECT_EQ(chosen.family, family);
        EXPECT_LE(chosen.isa, isa);
        EXPECT_TRUE(chosen.takes(code));
        for (const Gemm* other : all_group_gemms()) {
          if (other->family == family && other->isa <= isa && other->takes(code)) {
            EXPECT_LE(other->isa, chosen.isa) << other->name;
          }
        }
        if (std::string(chosen.name).find("e2m1") != std::string::npos) continue;  // below
        const std::string name = (family == Family::kBf16 ? "bf16_groups_" : "s8_groups_") +
                                 std::to_string(chosen.max_rows) + "x32_" + isa_name(chosen.isa) +
                                 (vnni && family == Family::kS8 && chosen.isa == Isa::kAvx2 ? "_vnni" : "");
        EXPECT_EQ(chosen.name, name);
      }
    }
  }
#if defined(__x86_64__)
  const auto e2m1 = [](Family family, Isa isa) {
    return group_gemm_for(family, WeightCode::kE2M1, isa).name;
  };
  EXPECT_STREQ(e2m1(Family::kS8, Isa::kAvx2), vnni ? "s8_e2m1_6x32_avx2_vnni" : "s8_e2m1_4x32_avx2");
  EXPECT_STREQ(e2m1(Family::kBf16, Isa::kAvx2), vnni ? "e4m3_e2m1_3x32_avx2_vnni" : "e4m3_e2m1_2x32_avx2");
  EXPECT_STREQ(e2m1(Family::kS8, Isa::kAvx512), "s8_e2m1_12x32_avx512");
  EXPECT_STREQ(e2m1(Family::kBf16, Isa::kAvx512), "bf16_groups_12x32_avx512");
  EXPECT_STREQ(e2m1(Family::kS8, Isa::kAvx512Vnni), "s8_groups_7x32_avx512_vnni");
  EXPECT_STREQ(e2m1(Family::kBf16, Isa::kAvx512Vnni), "e4m3_e2m1_4x32_avx512_vnni");
  EXPECT_STREQ(e2m1(Family::kBf16, Isa::kAvx512Bf16), "bf16_groups_12x32_avx512_bf16");
#endif
}

// A NaN among the values of a row is one in all its sums and in no other's.
TEST_P(GroupGemmTest, NanOfARowStaysInIt) {
  if (way().code != WeightCode::kE2M1 || way().gemm->family != Family::kBf16) GTEST_SKIP() << "no such rows";
  Problem problem(way(), 100, 32, true, 4);
  const std::vector<float> plain = problem.run(0, problem.rows);
  problem.a[problem.k + 40] = NAN;
  const std::vector<float> result = problem.run(0, problem.rows);
  for (int r = 0; r < problem.rows; ++r) {
    for (int c = 0; c < kPanelColumns; ++c) {
      const size_t at = static_cast<size_t>(r * kPanelColumns + c);
      EXPECT_TRUE(r == 1 ? std::isnan(result[at]) : result[at] == plain[at]);
    }
  }
}

// However fine the least value of a group is beside the largest one, in one row of a tile alone, no bit is
// lost.
TEST_P(GroupGemmTest, FineValuesOfE4M3RowsAreExact) {
  if (way().code != WeightCode::kE2M1 || way().gemm->family != Family::kBf16) GTEST_SKIP() << "no such rows";
  for (int exponent = 0; exponent >= -9; --exponent) {
    const float least = std::ldexp(1.0f, exponent);
    Problem problem(way(), 64, 32, false, static_cast<uint32_t>(100 - exponent));
    for (int r = 0; r < problem.rows; ++r) {
      float* const row = problem.a.data() + r * problem.k;
      for (int64_t i = 0; i < problem.k; ++i) row[i] = std::trunc(row[i] / least) * least;
      row[r] = r == 1 ? 448.0f : -448.0f;
      if (r == problem.rows - 1) row[32 + r] = least;
    }
    // So few weights that every order of products is exact.
    for (int64_t i = 0; i < problem.k; ++i) {
      for (int c = 0; c < kPanelColumns; ++c) {
        if ((i + c) % 11 != 0) problem.b[i * kPanelColumns + c] = 0;
      }
    }
    std::fill(problem.scales.begin(), problem.scales.end(), 1.0f);
    for (int rows = 1; rows <= problem.rows; ++rows) {
      const std::vector<float> result = problem.run(problem.rows - rows, rows);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < kPanelColumns; ++c) {
          double sum = 0;
          for (int64_t i = 0; i < problem.k; ++i) {
            sum += double{problem.a[(problem.rows - rows + r) * problem.k + i]} *
                   double{problem.b[i * kPanelColumns + c]};
          }
          ASSERT_EQ(double{result[r * kPanelColumns + c]}, sum) << "2^" << exponent << " row " << r;
        }
      }
    }
  }
}

std::string way_name(const testing::TestParamInfo<Way>& info) {
  constexpr const char* kNames[] = {"", "_e4m3", "_e5m2", "_e2m1", "_int4", "_int4_groups", "_e4m3_groups"};
  return std::string(info.param.gemm->name) + kNames[static_cast<int>(info.param.code)] +
         (info.param.keeps ? "_kept" : "");
}

INSTANTIATE_TEST_SUITE_P(Kernels, GroupGemmTest, testing::ValuesIn(all_ways()), way_name);

}  // namespace
}  // namespace megamoe::kernel
