// Panels against a naive loop, over layouts, strides and odd sizes; raw and packed sources agree bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <functional>
#include <memory>

#include "kernel/registry.h"
#include "pack/panel_source.h"
#include "pack/weights.h"

namespace megamoe {
namespace {

const kernel::RowOps& ops = kernel::row_ops_for(Isa::kGeneric);

using test::Order;
using test::TestWeights;

constexpr std::byte kPoison{0x5a};
constexpr int64_t kGuard = 256;

/// A 64-byte aligned strip between two poisoned guards.
class Strip {
 public:
  explicit Strip(int64_t bytes) : bytes_(bytes) {
    memory_.reset(static_cast<std::byte*>(
        std::aligned_alloc(64, static_cast<size_t>((bytes + 2 * kGuard + 63) / 64 * 64))));
    std::fill_n(memory_.get(), bytes + 2 * kGuard, kPoison);
  }
  std::byte* data() { return memory_.get() + kGuard; }
  bool guards_intact() const {
    for (int64_t i = 0; i < kGuard; ++i) {
      if (memory_.get()[i] != kPoison || memory_.get()[kGuard + bytes_ + i] != kPoison) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  int64_t bytes_;
};

/// Scales of every column as uint64 with garbage in the upper half, and as float32.
struct Scales {
  Scales(int64_t experts, int64_t n, bool wide) : columns(n) {
    for (int64_t i = 0; i < experts * n; ++i) {
      floats.push_back(0.25f + static_cast<float>(i) * 0.125f);
      words.push_back(0xdead0001'00000000u | std::bit_cast<uint32_t>(floats.back()));
    }
    if (wide) {
      views.push_back(TensorView(words.data(), DType::kUInt64, {experts, n}));
    } else {
      for (int64_t e = 0; e < experts; ++e)
        views.push_back(TensorView(&floats[static_cast<size_t>(e * n)], DType::kFloat32, {n}));
    }
  }
  float at(int64_t e, int64_t n) const { return floats[static_cast<size_t>(e * columns + n)]; }
  int64_t columns;
  std::vector<float> floats;
  std::vector<uint64_t> words;
  std::vector<TensorView> views;
};

void expect_panel(const pack::Geometry& g, const pack::Panel& panel, int64_t expert, int64_t index,
                  const std::function<uint32_t(int64_t, int64_t, int64_t)>& bits, const Scales* scales) {
  const int per = kernel::k_per_dword(g.family);
  const int width = 32 / per;
  const int64_t dwords = kernel::panel_bytes(g.family, g.k) / (32 * 4);
  const auto* codes = reinterpret_cast<const uint32_t*>(panel.codes);
  int wrong = 0;
  for (int j = 0; j < 32; ++j) {
    const int64_t column = g.column(index, j);
    int64_t sum = 0;
    for (int64_t d = 0; d < dwords; ++d) {
      uint32_t want = 0;
      for (int i = 0; i < per; ++i) {
        const int64_t k = d * per + i;
        if (k >= g.k || column < 0) continue;
        const uint32_t value = bits(expert, k, column);
        want |= value << (i * width);
        sum += static_cast<int8_t>(value);
      }
      wrong += codes[d * 32 + j] != want;
    }
    if (g.family == kernel::Family::kS8) wrong += panel.column_sums[j] != sum;
    if (scales != nullptr)
      wrong += panel.column_scales[j] != (column < 0 ? 0.0f : scales->at(expert, column));
  }
  EXPECT_EQ(wrong, 0) << "expert " << expert << " panel " << index << " k " << g.k << " n " << g.n;
}

void check_layer(const LinearWeights& linear, bool gated, const Scales* scales,
                 const std::function<uint32_t(int64_t, int64_t, int64_t)>& bits) {
  auto source = pack::raw_source(linear, gated, gated ? "weight1" : "weight2");
  ASSERT_TRUE(source) << source.status().message();
  auto packed = gated ? PackedWeights::pack_linear1(linear, true, 2) : PackedWeights::pack_linear2(linear, 2);
  ASSERT_TRUE(packed) << packed.status().message();
  auto stored = pack::packed_source(*packed);
  const pack::Geometry& g = (*source)->geometry();
  EXPECT_EQ((*packed)->k(), g.k);
  EXPECT_EQ((*packed)->n(), g.n);
  EXPECT_EQ((*packed)->experts(), g.experts);
  EXPECT_EQ(stored->strip_bytes(), 0);
  const auto bytes = static_cast<size_t>(kernel::panel_bytes(g.family, g.k));
  for (int64_t e = 0; e < g.experts; ++e) {
    for (int64_t p = 0; p < g.panels(); ++p) {
      Strip strip((*source)->strip_bytes());
      const pack::Panel raw = (*source)->panel(e, p, strip.data());
      EXPECT_TRUE(strip.guards_intact());
      expect_panel(g, raw, e, p, bits, scales);
      const pack::Panel kept = stored->panel(e, p, nullptr);
      EXPECT_EQ(stored->stored(e, p), kept.codes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(kept.codes) % 64, 0u);
      EXPECT_EQ(std::memcmp(raw.codes, kept.codes, bytes), 0);
      ASSERT_EQ(raw.column_sums == nullptr, kept.column_sums == nullptr);
      ASSERT_EQ(raw.column_scales == nullptr, kept.column_scales == nullptr);
      if (raw.column_sums != nullptr) {
        EXPECT_EQ(std::memcmp(raw.column_sums, kept.column_sums, 128), 0);
      }
      if (raw.column_scales != nullptr) {
        EXPECT_EQ(std::memcmp(raw.column_scales, kept.column_scales, 128), 0);
      }
      EXPECT_EQ((*source)->stored(e, p), nullptr);
    }
  }
}

TEST(Panel, EveryLayoutAndOddSizes) {
  for (DType dtype : {DType::kBFloat16, DType::kInt8}) {
    for (Order order : test::kOrders) {
      for (int64_t k : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 61, 100, 257}) {
        for (int64_t n : {1, 2, 15, 31, 32, 33, 62, 66, 100}) {
          for (bool gated : {false, true}) {
            if (gated && n % 2 != 0) continue;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " order " << static_cast<int>(order)
                                            << " k " << k << " n " << n << (gated ? " gated" : ""));
            const bool stacked = (k + n) % 2 == 0;
            TestWeights weights(dtype, 2, k, n, order, stacked, static_cast<uint32_t>(k * 1000 + n));
            const Scales scales(2, n, k % 2 == 0);
            if (dtype == DType::kInt8) weights.linear.scale = scales.views;
            check_layer(weights.linear, gated, dtype == DType::kInt8 ? &scales : nullptr,
                        [&](int64_t e, int64_t kk, int64_t c) { return weights.bits(e, kk, c); });
          }
        }
      }
    }
  }
}

TEST(Panel, SeparateGateAndUpTensors) {
  for (DType dtype : {DType::kBFloat16, DType::kInt8}) {
    for (Order order : {Order::kRows, Order::kColumns, Order::kNz}) {
      for (int64_t half : {1, 16, 33}) {
        TestWeights gate(dtype, 3, 61, half, order, false, 1), up(dtype, 3, 61, half, order, false, 2);
        const Scales scales(3, 2 * half, true);
        LinearWeights linear = gate.linear;
        linear.up = up.linear.weight;
        if (dtype == DType::kInt8) linear.scale = scales.views;
        check_layer(linear, true, dtype == DType::kInt8 ? &scales : nullptr,
                    [&](int64_t e, int64_t k, int64_t c) {
                      return c < half ? gate.bits(e, k, c) : up.bits(e, k, c - half);
                    });
      }
    }
  }
}

// Column by column: where gate column c stands in the stored order, and its up column.
TEST(Panel, GateAndUpColumnsInTurn) {
  for (DType dtype : {DType::kBFloat16, DType::kInt8}) {
    for (Order order : test::kOrders) {
      for (const auto& [half, together] :
           {std::pair<int64_t, int64_t>{1, 1}, {16, 1}, {33, 1}, {40, 8}, {48, 16}, {33, 11}, {34, 34}}) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " order " << static_cast<int>(order)
                                        << " half " << half << " together " << together);
        TestWeights weights(dtype, 2, 61, 2 * half, order, half % 2 == 0, 3);
        const Scales scales(2, 2 * half, true);
        weights.linear.interleave = together;
        if (dtype == DType::kInt8) weights.linear.scale = scales.views;
        auto source = pack::raw_source(weights.linear, true, "weight1");
        ASSERT_TRUE(source) << source.status().message();
        const pack::Geometry& g = (*source)->geometry();
        int64_t output = 0;
        for (int64_t start = 0; start < 2 * half; start += 2 * together) {
          for (int64_t c = start; c < start + together; ++c, ++output) {
            EXPECT_EQ(g.column(output / 16, static_cast<int>(output % 16)), c);
            EXPECT_EQ(g.column(output / 16, static_cast<int>(16 + output % 16)), c + together);
          }
        }
        check_layer(weights.linear, true, dtype == DType::kInt8 ? &scales : nullptr,
                    [&](int64_t e, int64_t k, int64_t c) { return weights.bits(e, k, c); });
      }
    }
  }
}

TEST(Panel, ColumnSumsOfExtremes) {
  const int64_t k = 131071;
  std::vector<int8_t> codes(static_cast<size_t>(k), int8_t{-128});
  std::vector<float> scale{1.0f};
  LinearWeights linear;
  linear.weight = {TensorView(codes.data(), DType::kInt8, {k, 1})};
  linear.scale = {TensorView(scale.data(), DType::kFloat32, {1})};
  auto packed = PackedWeights::pack_linear2(linear, 1);
  ASSERT_TRUE(packed) << packed.status().message();
  EXPECT_EQ(pack::packed_source(*packed)->panel(0, 0, nullptr).column_sums[0], -128 * k);
}

TEST(Panel, NoExperts) {
  LinearWeights linear;
  linear.weight = {TensorView(nullptr, DType::kBFloat16, {0, 8, 6})};
  auto packed = PackedWeights::pack_linear1(linear);
  ASSERT_TRUE(packed) << packed.status().message();
  EXPECT_EQ((*packed)->experts(), 0);
  EXPECT_EQ((*packed)->bytes(), 0);
}

TEST(Panel, HoldsNotMuchMoreThanThePanels) {
  std::vector<uint16_t> data(4 * 256 * 512);
  LinearWeights linear;
  linear.weight = {TensorView(data.data(), DType::kBFloat16, {4, 256, 512})};
  auto packed = PackedWeights::pack_linear1(linear);
  ASSERT_TRUE(packed) << packed.status().message();
  EXPECT_EQ((*packed)->bytes(), static_cast<int64_t>(data.size() * 2));
}

}  // namespace
}  // namespace megamoe
