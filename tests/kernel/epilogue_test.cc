// Tile epilogues on every level: bf16 rounding of all values, places and counts of outputs, scales in their
// order.
#include <cmath>
#include <cstring>
#include <random>

#include "format/bf16.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

class EpilogueTest : public RowOpsTest {
 protected:
  /// Linear2 without scales is the bf16 rounding and nothing else.
  std::vector<uint16_t> round(const std::vector<float>& values) {
    std::vector<uint16_t> result(values.size());
    Guarded<float> c(kPanelColumns);
    for (size_t i = 0; i < values.size(); i += kPanelColumns) {
      std::copy(values.begin() + i, values.begin() + i + kPanelColumns, c.data());
      uint16_t* out = &result[i];
      ops().linear2[0](
          {c.data(), 1, kPanelColumns, nullptr, nullptr, nullptr, nullptr, nullptr, &out, false});
    }
    return result;
  }
};

// Each bf16 value, its neighbours one unit off, both halves and their neighbours: NaN, subnormals, overflow
// included.
TEST_P(EpilogueTest, Bf16RoundingOfEveryPattern) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x4000u, 0x7fffu, 0x8000u, 0x8001u, 0xc000u, 0xffffu}) {
      values.push_back(__builtin_bit_cast(float, high << 16 | low));
    }
  }
  const std::vector<uint16_t> got = round(values);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(got[i], format::bf16_from_float(values[i] + 0.0f))  // a sum that is zero is +0
        << std::hex << __builtin_bit_cast(uint32_t, values[i]);
  }
}

TEST_P(EpilogueTest, Linear2WritesExactlyItsOutputs) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  constexpr int kRows = 5;
  Guarded<float> c(kRows * kPanelColumns);
  Guarded<int32_t> sums(kRows * kPanelColumns);
  Guarded<float> column_scales(kPanelColumns), row_scales(kRows);
  for (int i = 0; i < kRows * kPanelColumns; ++i) {
    c[i] = normal(random);
    sums[i] = static_cast<int32_t>(random()) >> 4;
  }
  for (int i = 0; i < kPanelColumns; ++i) column_scales[i] = normal(random);
  for (int i = 0; i < kRows; ++i) row_scales[i] = normal(random);
  for (int outputs = 1; outputs <= kPanelColumns; ++outputs) {
    for (EpilogueKind kind : {EpilogueKind::kBf16, EpilogueKind::kScaledInt32}) {
      const bool scaled = kind == EpilogueKind::kScaledInt32;
      std::vector<Guarded<uint16_t>> rows;
      for (int r = 0; r < kRows; ++r) rows.emplace_back(outputs);
      uint16_t* out[kRows];
      for (int r = 0; r < kRows; ++r) out[r] = rows[r].data();
      const void* tile = scaled ? static_cast<const void*>(sums.data()) : c.data();
      ops().linear2[static_cast<int>(kind)]({tile, kRows, outputs, scaled ? column_scales.data() : nullptr,
                                             nullptr, nullptr, scaled ? row_scales.data() : nullptr, nullptr,
                                             out, false});
      for (int r = 0; r < kRows; ++r) {
        ASSERT_TRUE(rows[r].intact()) << outputs;
        for (int i = 0; i < outputs; ++i) {
          float want = c[r * kPanelColumns + i];
          if (scaled) {
            volatile const float once = static_cast<float>(sums[r * kPanelColumns + i]) * column_scales[i];
            want = once * row_scales[r];
          }
          ASSERT_EQ(rows[r][i], format::bf16_from_float(want)) << "row " << r << " column " << i;
        }
      }
    }
  }
}

// Past the caches or through them, and with every term: the same bits, and nothing beside the panel.
TEST_P(EpilogueTest, Linear2StreamsTheSameBits) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  constexpr int kRows = 3, kStride = 2 * kPanelColumns;
  float c[kRows * kPanelColumns];
  int32_t sums[kRows * kPanelColumns];
  float columns[3][kPanelColumns], row_scales[kRows], bias_factors[kRows];
  for (float& value : c) value = normal(random);
  c[5] = NAN;
  c[40] = 1e-41f;
  for (int32_t& sum : sums) sum = static_cast<int32_t>(random()) >> 4;
  for (auto& row : columns) {
    for (float& value : row) value = normal(random);
  }
  for (float& value : row_scales) value = normal(random);
  for (float& value : bias_factors) value = normal(random);
  for (int kind = 0; kind < kEpilogueCount; ++kind) {
    for (int terms = 0; terms < 4; ++terms) {
      alignas(64) uint16_t rows[2][kRows * kStride];
      std::memset(rows, 0xff, sizeof rows);
      for (const bool stream : {false, true}) {
        uint16_t* out[kRows];
        for (int r = 0; r < kRows; ++r) out[r] = rows[stream] + r * kStride + kPanelColumns * (r % 2);
        const void* const tile =
            kind == static_cast<int>(EpilogueKind::kScaledInt32) ? static_cast<void*>(sums) : c;
        ops().linear2[kind]({tile, kRows, kPanelColumns, columns[0], terms % 2 == 0 ? nullptr : columns[1],
                             terms < 2 ? nullptr : columns[2], row_scales, bias_factors, out, stream});
        if (stream) ops().stream_end();
      }
      EXPECT_EQ(0, std::memcmp(rows[0], rows[1], sizeof rows[0])) << kind << " " << terms;
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < kPanelColumns; ++i) {
          const float* const from = c + r * kPanelColumns + i;
          float want = *from;
          if (kind == static_cast<int>(EpilogueKind::kScaledInt32)) {
            volatile float value = static_cast<float>(sums[r * kPanelColumns + i]) * columns[0][i];
            if (terms % 2 == 1) value = value + columns[1][i];
            want = value;
          }
          volatile float scaled = kind == 0 ? want : want * row_scales[r];
          volatile const float bias = columns[2][i] * bias_factors[r];
          if (terms >= 2) scaled = scaled + bias;
          EXPECT_EQ(rows[1][r * kStride + kPanelColumns * (r % 2) + i], format::bf16_from_float(scaled));
          EXPECT_EQ(rows[1][r * kStride + kPanelColumns * (1 - r % 2) + i], 0xffff);
        }
      }
    }
  }
}

TEST_P(EpilogueTest, Linear1WritesExactlyItsOutputs) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  constexpr int kRows = 3;
  Guarded<float> c(kRows * kPanelColumns);
  for (int i = 0; i < kRows * kPanelColumns; ++i) c[i] = normal(random);
  const ActivationParams params{.clamp = 2.0f, .linear_beta = 1.5f};
  for (const activation::ActivationInfo& info : activation::kActivations) {
    const int most = info.gated ? kGatedColumns : kPanelColumns;
    const auto function = ops().linear1[0][static_cast<int>(info.kind)];
    std::vector<uint16_t> whole(kRows * most);
    function({c.data(), kRows, most, nullptr, nullptr, nullptr, nullptr, nullptr, &params, whole.data(),
              most * 2});
    for (int outputs = 1; outputs <= most; ++outputs) {
      const int stride = outputs + 3;
      Guarded<uint16_t> out(kRows * stride);
      std::memset(out.data(), 0xff, kRows * stride * 2);
      function({c.data(), kRows, outputs, nullptr, nullptr, nullptr, nullptr, nullptr, &params, out.data(),
                stride * 2});
      ASSERT_TRUE(out.intact());
      for (int r = 0; r < kRows; ++r) {
        for (int i = 0; i < stride; ++i) {
          ASSERT_EQ(out[r * stride + i], i < outputs ? whole[r * most + i] : 0xffff)
              << info.name << " outputs " << outputs << " row " << r << " column " << i;
        }
      }
    }
  }
}

// The rounding to bf16 stands before the activation, the scales are applied column first.
TEST_P(EpilogueTest, Linear1RoundsAndScalesInOrder) {
  const ActivationParams params;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  Guarded<float> plain(kPanelColumns), rounded(kPanelColumns);
  for (int i = 0; i < kPanelColumns; ++i) {
    plain[i] = normal(random);
    rounded[i] = format::bf16_to_float(format::bf16_from_float(plain[i]));
  }
  uint16_t from_plain[kGatedColumns], from_rounded[kGatedColumns];
  ops().linear1[0][0](
      {plain.data(), 1, kGatedColumns, nullptr, nullptr, nullptr, nullptr, nullptr, &params, from_plain, 0});
  ops().linear1[0][0]({rounded.data(), 1, kGatedColumns, nullptr, nullptr, nullptr, nullptr, nullptr, &params,
                       from_rounded, 0});
  EXPECT_EQ(0, std::memcmp(from_plain, from_rounded, sizeof(from_plain)));

  Guarded<int32_t> sums(kPanelColumns), ones(kPanelColumns);
  Guarded<float> column_scales(kPanelColumns), values(kPanelColumns);
  const float row_scale = 0.37f, one = 1.0f;
  for (int i = 0; i < kPanelColumns; ++i) {
    sums[i] = static_cast<int32_t>(random()) >> 3;
    column_scales[i] = normal(random) * 1e-8f;
    volatile const float once = static_cast<float>(sums[i]) * column_scales[i];
    values[i] = once * row_scale;
    ones[i] = 1;
  }
  float direct[kGatedColumns], by_hand[kGatedColumns];
  ops().linear1[1][0]({sums.data(), 1, kGatedColumns, column_scales.data(), nullptr, nullptr, &row_scale,
                       nullptr, &params, direct, 0});
  ops().linear1[1][0](
      {ones.data(), 1, kGatedColumns, values.data(), nullptr, nullptr, &one, nullptr, &params, by_hand, 0});
  EXPECT_EQ(0, std::memcmp(direct, by_hand, sizeof(direct)));
}

// The values are those of Linear2, which has the same scales and bias, but for its last rounding.
TEST_P(EpilogueTest, Linear1ValuesCoverThePanel) {
  constexpr int kRows = 3;
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  Guarded<float> c(kRows * kPanelColumns), column_scales(kPanelColumns), shift(kPanelColumns),
      bias(kPanelColumns), row_scales(kRows);
  Guarded<int32_t> sums(kRows * kPanelColumns);
  for (int i = 0; i < kRows * kPanelColumns; ++i) {
    c[i] = normal(random);
    sums[i] = static_cast<int32_t>(random()) >> 12;
  }
  for (auto* list : {&column_scales, &shift, &bias}) {
    for (int i = 0; i < kPanelColumns; ++i) (*list)[i] = normal(random);
  }
  for (int r = 0; r < kRows; ++r) row_scales[r] = normal(random);
  constexpr int kStride = kPanelColumns + 3;
  for (EpilogueKind kind : {EpilogueKind::kBf16, EpilogueKind::kScaledInt32}) {
    const bool scaled = kind == EpilogueKind::kScaledInt32;
    const void* tile = scaled ? static_cast<const void*>(sums.data()) : c.data();
    Guarded<float> out((kRows - 1) * kStride + kPanelColumns);
    ops().linear1_values[static_cast<int>(kind)]({tile, kRows, 1, scaled ? column_scales.data() : nullptr,
                                                  scaled ? shift.data() : nullptr, bias.data(),
                                                  scaled ? row_scales.data() : nullptr, nullptr, nullptr,
                                                  out.data(), kStride * sizeof(float)});
    ASSERT_TRUE(out.intact());
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kPanelColumns; ++i) {
        float want = c[r * kPanelColumns + i];
        if (scaled) {
          volatile float t = static_cast<float>(sums[r * kPanelColumns + i]) * column_scales[i];
          t = t + shift[i];
          want = t * row_scales[r];
        }
        volatile const float biased = want + bias[i];
        want = scaled ? biased : format::bf16_to_float(format::bf16_from_float(biased));
        ASSERT_EQ(out[r * kStride + i], want) << "row " << r << " column " << i;
      }
    }
  }
}

INSTANTIATE_ROW_OPS(EpilogueTest);

}  // namespace
}  // namespace megamoe::kernel
