// Every matrix kernel of the registry against plain loops: exact for s8, within the rounding bound of fp32
// sums for bf16.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "format/bf16.h"
#include "kernel/k_loop.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

constexpr int64_t kDepths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 61, 64, 100, 704};

/// Codes of either family: bf16 bits or an s8 value, so that both families share the loops below.
using Code = uint16_t;

double value_of(Family family, Code code) {
  return family == Family::kBf16 ? format::bf16_to_float(code) : static_cast<int8_t>(code);
}

/// A tile problem: A [rows][k] and B [k][32] as codes, and the buffers a kernel sees.
struct Problem {
  Problem(const Gemm& gemm, int rows, int64_t k)
      : gemm(gemm), rows(rows), k(k), a(rows * k), b(k * kPanelColumns) {}

  size_t code_bytes() const { return gemm.family == Family::kBf16 ? 2 : 1; }

  /// Runs rows [first, first + count) as one tile, k packed and multiplied in ranges of `range`; returns
  /// [count][32] raw 32-bit results.
  std::vector<uint32_t> run(int first, int count, const std::byte* prefetch = nullptr,
                            int64_t prefetch_bytes = 0, int64_t range = int64_t{1} << 40) const {
    const int64_t gap = 3;  // rows do not follow each other directly; between them stands NaN or -1
    const size_t stride = static_cast<size_t>(k + gap) * code_bytes();
    Guarded<unsigned char> codes(stride * count);
    std::memset(codes.data(), 0xff, stride * count);
    for (int r = 0; r < count; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        std::memcpy(codes.data() + r * stride + i * code_bytes(), &a[(first + r) * k + i], code_bytes());
      }
    }
    Guarded<unsigned char> panel(static_cast<size_t>(panel_bytes(gemm.family, k)));
    std::memset(panel.data(), 0, static_cast<size_t>(panel_bytes(gemm.family, k)));
    Guarded<int32_t> sums(kPanelColumns);
    const int per_dword = k_per_dword(gemm.family);
    for (int c = 0; c < kPanelColumns; ++c) {
      sums[c] = 0;
      for (int64_t i = 0; i < k; ++i) {
        const Code code = b[i * kPanelColumns + c];
        std::memcpy(panel.data() + (i / per_dword * kPanelColumns + c) * 4 + i % per_dword * code_bytes(),
                    &code, code_bytes());
        if (gemm.family == Family::kS8) sums[c] += static_cast<int8_t>(code);
      }
    }
    Guarded<unsigned char> packed(gemm.packed_bytes(count, k));
    for (int64_t begin = 0; begin < k; begin += range) {
      gemm.pack_rows({codes.data() + static_cast<size_t>(begin) * code_bytes(),
                      static_cast<ptrdiff_t>(stride), count, std::min(range, k - begin),
                      packed.data() + gemm.packed_bytes(count, begin)});
    }
    Guarded<uint32_t> c(static_cast<size_t>(count) * kPanelColumns);
    for (int64_t begin = 0; begin < k; begin += range) {
      Tile tile{packed.data(), count,         std::min(range, k - begin), panel.data(), sums.data(), c.data(),
                prefetch,      prefetch_bytes};
      tile.panel = panel.data() + panel_bytes(gemm.family, begin);
      tile.k_begin = begin;
      tile.accumulate = begin > 0;
      tile.read_once = read_once;
      tile.ahead = ahead;
      gemm.tile(tile);
    }
    EXPECT_TRUE(packed.intact() && c.intact() && codes.intact() && panel.intact());
    return std::vector<uint32_t>(c.data(), c.data() + count * kPanelColumns);
  }

  /// Checks rows [first, first + count) of `result` against double sums.
  void check(const std::vector<uint32_t>& result, int first, int count) const {
    for (int r = 0; r < count; ++r) {
      for (int c = 0; c < kPanelColumns; ++c) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double product =
              value_of(gemm.family, a[(first + r) * k + i]) * value_of(gemm.family, b[i * kPanelColumns + c]);
          sum += product;
          magnitude += std::fabs(product);
        }
        const uint32_t bits = result[r * kPanelColumns + c];
        if (gemm.family == Family::kS8) {
          ASSERT_EQ(static_cast<int32_t>(bits), static_cast<int64_t>(sum))
              << "row " << r << " column " << c << " k " << k;
        } else {
          // One rounding per product at most, and products below the normal range may be flushed.
          const double bound = static_cast<double>(k) * (magnitude * 0x1p-24 + 0x1p-126);
          ASSERT_NEAR(__builtin_bit_cast(float, bits), sum, bound)
              << "row " << r << " column " << c << " k " << k;
        }
      }
    }
  }

  void fill_random(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto draw = [&]() -> Code {
      if (gemm.family == Family::kBf16) return format::bf16_from_float(normal(random));
      return static_cast<uint8_t>(random());
    };
    for (Code& code : a) code = draw();
    for (Code& code : b) code = draw();
  }

  const Gemm& gemm;
  int rows;
  int64_t k;
  bool read_once = false;
  int64_t ahead = 0;
  std::vector<Code> a, b;
};

class GemmTest : public testing::TestWithParam<const Gemm*> {
 protected:
  void SetUp() override { SKIP_UNLESS_GEMM_RUNS(*GetParam()); }
  const Gemm& gemm() const { return *GetParam(); }
  bool is_s8() const { return gemm().family == Family::kS8; }
};

class S8GemmTest : public GemmTest {};

TEST_P(GemmTest, MatchesPlainLoops) {
  for (int64_t k : kDepths) {
    Problem problem(gemm(), gemm().max_rows, k);
    problem.fill_random(static_cast<uint32_t>(k));
    for (int rows = 1; rows <= gemm().max_rows; ++rows) problem.check(problem.run(0, rows), 0, rows);
  }
}

// The same bits for a row alone, first, last or in the middle of any tile, also beside rows of NaN and
// infinity.
TEST_P(GemmTest, RowDoesNotDependOnItsTile) {
  for (int64_t k : {int64_t{7}, int64_t{61}, int64_t{704}}) {
    const int rows = gemm().max_rows;
    Problem problem(gemm(), rows, k);
    problem.fill_random(17);
    std::vector<std::vector<uint32_t>> alone;
    for (int r = 0; r < rows; ++r) alone.push_back(problem.run(r, 1));
    for (int count = 1; count <= rows; ++count) {
      for (int first = 0; first + count <= rows; ++first) {
        const std::vector<uint32_t> tile = problem.run(first, count);
        for (int r = 0; r < count; ++r) {
          ASSERT_EQ(0, std::memcmp(&tile[r * kPanelColumns], alone[first + r].data(), 4 * kPanelColumns))
              << "k " << k << " rows " << count << " row " << r;
        }
      }
    }
    if (is_s8() || rows < 3) continue;
    for (int64_t i = 0; i < k; ++i) {
      problem.a[i] = 0x7fc0;
      problem.a[(rows - 1) * k + i] = 0x7f80;
    }
    const std::vector<uint32_t> tile = problem.run(0, rows);
    EXPECT_TRUE(std::isnan(__builtin_bit_cast(float, tile[0])));
    for (int r = 1; r + 1 < rows; ++r) {
      ASSERT_EQ(0, std::memcmp(&tile[r * kPanelColumns], alone[r].data(), 4 * kPanelColumns)) << "k " << k;
    }
  }
}

TEST_P(GemmTest, RangesOfKGiveTheSameBits) {
  for (int64_t k : {int64_t{8}, int64_t{61}, int64_t{704}, int64_t{2051}}) {
    Problem problem(gemm(), gemm().max_rows, k);
    problem.fill_random(static_cast<uint32_t>(k));
    for (int count : {1, 2, problem.rows}) {
      const std::vector<uint32_t> whole = problem.run(0, count);
      for (int64_t range : {kRangeStep, 4 * kRangeStep}) {
        EXPECT_EQ(whole, problem.run(0, count, nullptr, 0, range)) << "k " << k << " range " << range;
      }
    }
  }
}

TEST_P(GemmTest, SmallIntegersAreExact) {
  Problem problem(gemm(), gemm().max_rows, 333);
  std::mt19937 random(5);
  const auto draw = [&]() -> Code {
    const int value = static_cast<int>(random() % 17) - 8;
    return is_s8() ? static_cast<uint8_t>(value) : format::bf16_from_float(static_cast<float>(value));
  };
  for (Code& code : problem.a) code = draw();
  for (Code& code : problem.b) code = draw();
  const std::vector<uint32_t> result = problem.run(0, problem.rows);
  for (int r = 0; r < problem.rows; ++r) {
    for (int c = 0; c < kPanelColumns; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < problem.k; ++i) {
        sum += value_of(gemm().family, problem.a[r * problem.k + i]) *
               value_of(gemm().family, problem.b[i * kPanelColumns + c]);
      }
      const uint32_t bits = result[r * kPanelColumns + c];
      const double got = is_s8() ? static_cast<int32_t>(bits) : __builtin_bit_cast(float, bits);
      ASSERT_EQ(got, sum) << "row " << r << " column " << c;
    }
  }
}

// Sign tricks break on -128: every pair of extreme codes, in every position of a dword, and sums at the far
// end.
TEST_P(S8GemmTest, ExtremeCodesAreExact) {
  constexpr int8_t kExtremes[] = {-128, -127, 127};
  for (int8_t x : kExtremes) {
    for (int8_t w : kExtremes) {
      for (int64_t k : {int64_t{1}, int64_t{3}, int64_t{4}, int64_t{6}, int64_t{8192}}) {
        Problem problem(gemm(), gemm().max_rows, k);
        for (Code& code : problem.a) code = static_cast<uint8_t>(x);
        for (Code& code : problem.b) code = static_cast<uint8_t>(w);
        problem.check(problem.run(0, problem.rows), 0, problem.rows);
        problem.check(problem.run(0, 1), 0, 1);
      }
    }
  }
  Problem mixed(gemm(), gemm().max_rows, 8191);
  std::mt19937 random(3);
  for (Code& code : mixed.a) code = static_cast<uint8_t>(kExtremes[random() % 3]);
  for (Code& code : mixed.b) code = static_cast<uint8_t>(kExtremes[random() % 3]);
  mixed.check(mixed.run(0, mixed.rows), 0, mixed.rows);
}

TEST_P(GemmTest, PrefetchHintsChangeNothing) {
  std::vector<std::byte> weights(1 << 16);
  for (int64_t k : {int64_t{1}, int64_t{9}, int64_t{100}}) {
    Problem problem(gemm(), gemm().max_rows, k);
    problem.fill_random(2);
    const std::vector<uint32_t> plain = problem.run(0, problem.rows);
    for (const bool once : {false, true}) {
      problem.read_once = once;
      for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{1} << 16}) {
        EXPECT_EQ(plain, problem.run(0, problem.rows, weights.data(), bytes));
      }
    }
    for (const int64_t ahead : {128, 8192}) {
      problem.ahead = ahead;
      for (int rows = 1; rows <= problem.rows; ++rows) {
        const std::vector<uint32_t> streamed = problem.run(0, rows, rows % 2 == 0 ? nullptr : weights.data());
        EXPECT_TRUE(std::equal(streamed.begin(), streamed.end(), plain.begin())) << rows << " rows";
      }
    }
  }
}

// Rows of a panel that a stream announces, in rows from the beginning of the panel; 100: of what follows it.
std::vector<int64_t> announced_rows(int64_t rows, int64_t ahead, bool follows) {
  std::vector<std::byte> memory(200 * StreamAhead::kRowBytes);
  Tile tile{};
  tile.panel = memory.data();
  tile.prefetch = follows ? memory.data() + 100 * StreamAhead::kRowBytes : nullptr;
  tile.ahead = ahead * StreamAhead::kRowBytes;
  std::vector<int64_t> announced;
  int64_t row = 0;
  for (const StreamAhead::Part& part : StreamAhead(tile, rows)) {
    for (int64_t end = row + part.rows; row < end; ++row) {
      announced.push_back(row + part.distance / StreamAhead::kRowBytes);
    }
  }
  return announced;
}

TEST(StreamAhead, GoesOnWhereTheNextPanelBegins) {
  EXPECT_EQ(announced_rows(5, 2, true), (std::vector<int64_t>{2, 3, 4, 100, 101}));
  EXPECT_EQ(announced_rows(3, 3, true), (std::vector<int64_t>{100, 101, 102}));
  EXPECT_EQ(announced_rows(3, 5, true), (std::vector<int64_t>{102, 103, 104}));
  EXPECT_EQ(announced_rows(4, 2, false), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(announced_rows(2, 3, false), (std::vector<int64_t>{3, 4}));
}

std::vector<const Gemm*> s8_gemms() {
  std::vector<const Gemm*> gemms;
  for (const Gemm* gemm : all_gemms()) {
    if (gemm->family == Family::kS8) gemms.push_back(gemm);
  }
  return gemms;
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmTest, testing::ValuesIn(all_gemms().begin(), all_gemms().end()),
                         gemm_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, S8GemmTest, testing::ValuesIn(s8_gemms()), gemm_test_name);

}  // namespace
}  // namespace megamoe::kernel
