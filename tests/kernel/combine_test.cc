// Combine on every level: bit for bit the ordered sum of rounded products.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "format/bf16.h"
#include "format/float16.h"
#include "format/float4_e2m1.h"
#include "kernel/levels.h"

namespace megamoe::kernel {
namespace {

class CombineTest : public RowOpsTest {
 protected:
  std::vector<uint16_t> run(const std::vector<std::vector<uint16_t>>& rows, const std::vector<float>& weights,
                            int64_t h, bool half = false) {
    std::vector<const uint16_t*> pointers;
    for (const auto& row : rows) pointers.push_back(row.data());
    Guarded<uint16_t> out(static_cast<size_t>(h));
    ops().combine({pointers.data(), weights.data(), static_cast<int>(rows.size()), h, out.data(), half});
    EXPECT_TRUE(out.intact());
    return std::vector<uint16_t>(out.data(), out.data() + h);
  }
};

TEST_P(CombineTest, OrderedSumForEveryWidthAndSlotCount) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (int64_t h = 1; h <= 140; ++h) {
    for (int slots : {0, 1, 2, 3, 8}) {
      std::vector<std::vector<uint16_t>> rows(slots, std::vector<uint16_t>(h));
      std::vector<float> weights(slots);
      for (auto& row : rows) {
        for (uint16_t& v : row) v = format::bf16_from_float(normal(random));
      }
      for (float& w : weights) w = normal(random);
      std::vector<uint16_t> want(h), want_half(h);
      for (int64_t i = 0; i < h; ++i) {
        float sum = 0;
        for (int s = 0; s < slots; ++s) {
          volatile const float product = format::bf16_to_float(rows[s][i]) * weights[s];
          sum = s == 0 ? product : sum + product;
        }
        want[i] = format::bf16_from_float(sum);
        want_half[i] = format::f16_from_float(sum);
      }
      ASSERT_EQ(run(rows, weights, h), want) << "h " << h << " slots " << slots;
      ASSERT_EQ(run(rows, weights, h, true), want_half) << "h " << h << " slots " << slots;
    }
  }
}

// fl(fl(a) + fl(b)) and a fused sum differ here; so do other orders of the slots.
TEST_P(CombineTest, NeitherFusedNorReordered) {
  const auto bf16 = [](float x) { return std::vector<uint16_t>(33, format::bf16_from_float(x)); };
  // fl(1.0078125 * 1.00000012) loses its last bits; 1 - that product shows them.
  const float w = 1.00000012f;
  volatile const float product = 1.0078125f * w;
  const float want = -product + product;
  EXPECT_EQ(run({bf16(-1.0078125f), bf16(1.0078125f)}, {w, w}, 33),
            std::vector<uint16_t>(33, format::bf16_from_float(want)));
  // Order: (2^30 + 1) - 2^30 = 0 in float, (2^30 - 2^30) + 1 = 1.
  EXPECT_EQ(run({bf16(0x1p30f), bf16(1), bf16(-0x1p30f)}, {1, 1, 1}, 33), std::vector<uint16_t>(33, 0));
  EXPECT_EQ(run({bf16(0x1p30f), bf16(-0x1p30f), bf16(1)}, {1, 1, 1}, 33), bf16(1));
  // The first slot is copied, not added to +0.
  EXPECT_EQ(run({bf16(-0.0f)}, {1}, 33), std::vector<uint16_t>(33, 0x8000));
}

// A row may be larger than float16 can hold: only the sum is rounded to it.
TEST_P(CombineTest, Float16IsRoundedOnceAtTheEnd) {
  const std::vector<uint16_t> large(33, format::bf16_from_float(100352));
  EXPECT_EQ(run({large}, {0.01f}, 33, true), std::vector<uint16_t>(33, format::f16_from_float(1003.52f)));
  EXPECT_EQ(run({large}, {1}, 33, true), std::vector<uint16_t>(33, 0x7c00));
  EXPECT_EQ(run({large, large}, {1, -1}, 33, true), std::vector<uint16_t>(33, 0));
  // 1 + 2^-11 is the middle of two float16 values; the bfloat16 rows hold it as a sum only.
  const std::vector<uint16_t> one(33, format::bf16_from_float(1)),
      tiny(33, format::bf16_from_float(0x1p-11f));
  EXPECT_EQ(run({one, tiny}, {1, 1}, 33, true), std::vector<uint16_t>(33, 0x3c00));
  EXPECT_EQ(run({one, tiny}, {1, 1.01f}, 33, true), std::vector<uint16_t>(33, 0x3c01));
}

TEST_P(CombineTest, EveryFloat16BecomesTheNearestBf16) {
  std::vector<uint16_t> half(65536 + 7);
  for (size_t i = 0; i < half.size(); ++i) half[i] = static_cast<uint16_t>(i);
  Guarded<uint16_t> out(half.size());
  ops().half_to_bf16(half.data(), static_cast<int64_t>(half.size()), out.data());
  EXPECT_TRUE(out.intact());
  for (size_t i = 0; i < half.size(); ++i) {
    const float value = format::f16_to_float(half[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(format::bf16_to_float(out[i]))) << i;
    } else {
      ASSERT_EQ(out[i], format::bf16_from_float(value)) << i;
    }
  }
}

TEST_P(CombineTest, CutsFloatsToBf16) {
  for (const size_t n : {1u, 7u, 16u, 33u, 64u, 95u, 2048u}) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) {
      // Rounding to nearest would make another bfloat16 of most of them.
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(0x9e3779b9u * (i + 1)));
      if (std::isnan(values[i])) values[i] = std::bit_cast<float>(0x0001ffffu);  // subnormal
    }
    Guarded<uint16_t> halves(n);
    ops().cut_to_bf16(values.data(), static_cast<int64_t>(n), halves.data());
    EXPECT_TRUE(halves.intact());
    for (size_t i = 0; i < n; ++i) {
      ASSERT_EQ(halves[i], std::bit_cast<uint32_t>(values[i]) >> 16) << i << " of " << n;
    }
  }
}

TEST_P(CombineTest, DoublesE2M1) {
  for (const size_t n : {2u, 30u, 32u, 66u, 128u, 512u, 2048u}) {
    std::vector<uint8_t> codes(n / 2);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);  // all pairs
    Guarded<int8_t> bytes(n);
    ops().doubled_e2m1(codes.data(), static_cast<int64_t>(n), bytes.data());
    EXPECT_TRUE(bytes.intact());
    for (size_t i = 0; i < n; ++i) {
      const auto code = static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4) & 15);
      ASSERT_EQ(static_cast<float>(bytes[i]), 2 * format::e2m1_to_float(code)) << i << " of " << n;
    }
  }
}

INSTANTIATE_ROW_OPS(CombineTest);

}  // namespace
}  // namespace megamoe::kernel
