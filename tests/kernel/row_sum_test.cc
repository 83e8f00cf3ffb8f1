// Sums of rows, dot products and streaming copies of every level.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "format/bf16.h"
#include "format/float16.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

class RowSumTest : public RowOpsTest {};
INSTANTIATE_ROW_OPS(RowSumTest);

float decode(RowType type, uint16_t bits) {
  return type == RowType::kFloat16 ? format::f16_to_float(bits) : format::bf16_to_float(bits);
}
uint16_t encode(RowType type, float value) {
  return type == RowType::kFloat16 ? format::f16_from_float(value) : format::bf16_from_float(value);
}

// Every 16-bit value times a factor, rounded once.
TEST_P(RowSumTest, EveryHalfTimesAFactor) {
  std::vector<uint16_t> x(65536), out(65536);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  const void* const row = x.data();
  for (RowType type : {RowType::kFloat16, RowType::kBf16}) {
    for (float factor : {1.0f, 0.1f, -3.0f, 1e-4f, 0x1p-20f, 65504.0f}) {
      ops().sum_rows[static_cast<int>(type)]({&row, &factor, 1, false, 65536, out.data()});
      for (size_t i = 0; i < x.size(); ++i) {
        const uint16_t want = encode(type, decode(type, x[i]) * factor);
        if (std::isnan(decode(type, want))) {
          ASSERT_TRUE(std::isnan(decode(type, out[i]))) << i << " x " << factor;
        } else {
          ASSERT_EQ(out[i], want) << i << " x " << factor;
        }
      }
    }
  }
}

// Floats around every tie between two halves.
TEST_P(RowSumTest, TiesOfHalves) {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const double low = format::f16_to_float(static_cast<uint16_t>(half));
    const double high = half == 0x7bff ? 65536.0 : format::f16_to_float(static_cast<uint16_t>(half + 1));
    const float tie = static_cast<float>((low + high) / 2);
    const uint16_t one = 0x3c00;
    const void* const row = &one;
    for (float factor : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 1e9f), -tie}) {
      uint16_t out = 0;
      ops().sum_rows[static_cast<int>(RowType::kFloat16)]({&row, &factor, 1, false, 1, &out});
      ASSERT_EQ(out, format::f16_from_float(factor)) << factor;
    }
  }
}

TEST_P(RowSumTest, EqualsPlainLoops) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (RowType type : {RowType::kFloat32, RowType::kFloat16, RowType::kBf16}) {
    const int element = type == RowType::kFloat32 ? 4 : 2;
    for (int64_t n : {1, 7, 8, 15, 16, 17, 63, 64, 65, 130}) {
      for (int count : {0, 1, 3, 8}) {
        std::vector<Guarded<uint8_t>> memory;
        std::vector<const void*> rows;
        std::vector<float> values, weights;
        for (int r = 0; r < count; ++r) {
          memory.emplace_back(static_cast<size_t>(n * element));
          for (int64_t i = 0; i < n; ++i) {
            float value = r == 0 && i == 0 ? -0.0f : normal(random);
            if (type == RowType::kFloat32) {
              std::memcpy(memory.back().data() + i * 4, &value, 4);
            } else {
              const uint16_t bits = encode(type, value);
              std::memcpy(memory.back().data() + i * 2, &bits, 2);
              value = decode(type, bits);
            }
            values.push_back(value);
          }
          rows.push_back(memory.back().data());
          weights.push_back(normal(random));
        }
        for (bool weighted : {false, true}) {
          for (bool from_zero : {false, true}) {
            Guarded<uint8_t> out(static_cast<size_t>(n * element));
            ops().sum_rows[static_cast<int>(type)](
                {rows.data(), weighted ? weights.data() : nullptr, count, from_zero, n, out.data()});
            EXPECT_TRUE(out.intact());
            for (int64_t i = 0; i < n; ++i) {
              float sum = 0;
              for (int r = 0; r < count; ++r) {
                const float term = weighted ? values[r * n + i] * weights[r] : values[r * n + i];
                sum = r == 0 && !from_zero ? term : sum + term;
              }
              if (type == RowType::kFloat32) {
                float got;
                std::memcpy(&got, out.data() + i * 4, 4);
                ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(sum)) << n << " " << i;
              } else {
                uint16_t got;
                std::memcpy(&got, out.data() + i * 2, 2);
                ASSERT_EQ(got, encode(type, sum)) << n << " " << i;
              }
            }
          }
        }
        if (count < 2) continue;
        double product = 0, magnitude = 0;
        for (int64_t i = 0; i < n; ++i) {
          product += static_cast<double>(values[i]) * values[n + i];
          magnitude += std::fabs(static_cast<double>(values[i]) * values[n + i]);
        }
        EXPECT_NEAR(ops().dot[static_cast<int>(type)](rows[0], rows[1], n), product,
                    1e-5 * magnitude + 1e-30);
      }
    }
  }
}

TEST_P(RowSumTest, StreamsEveryAlignment) {
  std::mt19937 random(2);
  for (int64_t bytes : {0, 1, 63, 64, 65, 127, 128, 1000, 14336}) {
    for (size_t shift : {0, 1, 2, 31, 32, 63}) {
      std::vector<uint8_t> in(static_cast<size_t>(bytes) + 3);
      for (uint8_t& b : in) b = static_cast<uint8_t>(random());
      Guarded<uint8_t> out(static_cast<size_t>(bytes) + 128);
      ops().stream_row(out.data() + shift, in.data() + 3, bytes);
      ops().stream_end();
      EXPECT_EQ(std::memcmp(out.data() + shift, in.data() + 3, static_cast<size_t>(bytes)), 0);
      for (size_t i = 0; i < static_cast<size_t>(bytes) + 128; ++i) {
        const bool outside = i < shift || i >= shift + static_cast<size_t>(bytes);
        ASSERT_TRUE(!outside || out[i] == 0xff) << bytes << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace megamoe::kernel
