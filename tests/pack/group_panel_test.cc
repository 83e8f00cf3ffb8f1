// Panels of weights with scales of groups or blocks, on every level and in both families: every value, scale
// and column sum against the caller's tensors, raw and packed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/memory.h"
#include "format/bf16.h"
#include "format/float16.h"
#include "format/table.h"
#include "kernel/registry.h"
#include "pack/packed_weights.h"
#include "pack/panel_source.h"

namespace megamoe {
namespace {

using kernel::Family;

/// Weights (E, N, K) with scales; every element is known by (expert, k, n).
struct Weights {
  DType dtype;
  DType scale_type;
  int64_t experts, k, n, group;
  bool zeros, separate_up;
  std::vector<uint8_t> codes, scales, up_codes;
  std::vector<int8_t> zero;

  Weights(DType weight, DType scale, int64_t per_group, bool has_zeros, bool separate, int64_t depth,
          int64_t columns)
      : dtype(weight),
        scale_type(scale),
        experts(2),
        k(depth),
        n(columns),
        group(per_group),
        zeros(has_zeros),
        separate_up(separate) {
    std::mt19937 random(static_cast<uint32_t>(depth * 31 + columns));
    codes.resize(static_cast<size_t>(experts * n * k * dtype_bits(dtype) / 8));
    for (uint8_t& c : codes) c = static_cast<uint8_t>(dtype == DType::kInt4 ? random() : random() & 0x9f);
    for (int64_t i = 0; i < experts * scale_rows() * groups(); ++i) {
      const float value = 0.25f + static_cast<float>(random() % 512) / 64.0f;
      uint32_t bits = scale == DType::kFloat16    ? format::f16_from_float(value)
                      : scale == DType::kBFloat16 ? format::bf16_from_float(value)
                                                  : __builtin_bit_cast(uint32_t, value);
      for (int b = 0; b < dtype_bits(scale) / 8; ++b, bits >>= 8)
        scales.push_back(static_cast<uint8_t>(bits));
      zero.push_back(static_cast<int8_t>(static_cast<int>(random() % 240) - 120));
    }
  }
  bool blocks() const { return dtype == DType::kFloat8E4M3; }
  int64_t groups() const { return (k + group - 1) / group; }
  int64_t scale_rows() const {
    const int64_t half = (n / 2 + 127) / 128;
    return !blocks() ? n : separate_up ? 2 * half : (n + 127) / 128;
  }
  int64_t scale_row(int64_t column) const {
    if (!blocks()) return column;
    if (!separate_up || column < n / 2) return column / 128;
    return (n / 2 + 127) / 128 + (column - n / 2) / 128;
  }
  float scale(int64_t e, int64_t g, int64_t column) const {
    const int64_t at = (e * scale_rows() + scale_row(column)) * groups() + g;
    uint32_t bits = 0;
    std::memcpy(&bits, scales.data() + at * dtype_bits(scale_type) / 8,
                static_cast<size_t>(dtype_bits(scale_type) / 8));
    return scale_type == DType::kFloat16    ? format::f16_to_float(static_cast<uint16_t>(bits))
           : scale_type == DType::kBFloat16 ? format::bf16_to_float(static_cast<uint16_t>(bits))
                                            : __builtin_bit_cast(float, bits);
  }
  /// Code less zero point.
  float value(int64_t e, int64_t at, int64_t column) const {
    const int64_t i = (e * n + column) * k + at;
    if (blocks()) return format::find_format(dtype)->decode(codes[static_cast<size_t>(i)]);
    const int nibble = codes[static_cast<size_t>(i / 2)] >> (i % 2 * 4) & 15;
    const int signed_code = nibble > 7 ? nibble - 16 : nibble;
    return static_cast<float>(
        signed_code - (zeros ? zero[static_cast<size_t>((e * n + column) * groups() + at / group)] : 0));
  }
  LinearWeights view() const {
    LinearWeights w;
    w.k_last = true;
    w.scale_group = group;
    if (separate_up) {  // a list, gate rows before up rows of each expert
      for (int64_t e = 0; e < experts; ++e) {
        const uint8_t* const start = codes.data() + e * n * k * dtype_bits(dtype) / 8;
        w.weight.push_back(TensorView(start, dtype, {n / 2, k}));
        w.up.push_back(TensorView(start + n / 2 * k * dtype_bits(dtype) / 8, dtype, {n / 2, k}));
      }
    } else {
      w.weight = {TensorView(codes.data(), dtype, {experts, n, k})};
    }
    w.scale = {TensorView(scales.data(), scale_type, {experts, scale_rows(), groups()})};
    if (zeros) w.zero = {TensorView(zero.data(), DType::kInt8, {experts, scale_rows(), groups()})};
    return w;
  }
};

float strip_value(Family family, const std::byte* strip, int64_t k, int column) {
  if (family == Family::kS8) {
    return static_cast<float>(reinterpret_cast<const int8_t*>(strip)[(k / 4 * 32 + column) * 4 + k % 4]);
  }
  return format::bf16_to_float(reinterpret_cast<const uint16_t*>(strip)[(k / 2 * 32 + column) * 2 + k % 2]);
}

/// A panel as the product with groups reads it: decoded whole, or in ranges of 128 k.
struct Decoded {
  Decoded(const pack::Geometry& g, const pack::Panel& panel, bool by_ranges, const kernel::RowOps& ops) {
    const auto groups = static_cast<size_t>(kernel::groups_of(g.k, g.group()));
    strip.resize(static_cast<size_t>(kernel::panel_bytes(g.family, g.k)) + 64);
    scales.resize(groups * 32);
    sums.resize(groups * 32);
    codes = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(strip.data()) + 63) / 64 * 64);
    const int64_t step = by_ranges ? 128 : g.k;
    for (int64_t begin = 0; begin < g.k; begin += step) {
      kernel::DecodePanel d{panel.codes, std::min(step, g.k - begin),
                            codes + kernel::panel_bytes(g.family, begin), g.form};
      d.scales = scales.data() + begin / g.group() * 32;
      d.sums = sums.data() + begin / g.group() * 32;
      d.k_begin = begin;
      ops.decode[static_cast<int>(g.family)][static_cast<int>(g.code)](d);
    }
  }
  std::vector<std::byte> strip;
  std::byte* codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

void check(const Weights& w, bool gated, Family family, const kernel::RowOps& ops) {
  const LinearWeights view = w.view();
  auto raw = pack::raw_source(view, gated, "weight1");
  ASSERT_TRUE(raw) << raw.status().message();
  auto made = gated ? PackedWeights::pack_linear1(view, true, 2) : PackedWeights::pack_linear2(view, 2);
  ASSERT_TRUE(made) << made.status().message();
  auto packed = pack::packed_source(*made);
  for (pack::PanelSource* source : {raw->get(), packed.get()}) {
    source->decode_to(family, false);
    const pack::Geometry& g = source->geometry();
    auto strip = base::Pages::allocate(static_cast<size_t>(source->strip_bytes()) + 64, false);
    ASSERT_TRUE(strip);
    for (int64_t e = 0; e < w.experts; ++e) {
      for (int64_t p = 0; p < g.panels(); ++p) {
        std::fill_n(strip->data(), strip->bytes(), std::byte{0x5a});
        const Decoded panel(g, source->panel(e, p, strip->data()), p % 2 == 1, ops);
        int wrong = 0;
        for (int j = 0; j < 32; ++j) {
          const int64_t column = g.column(p, j);
          for (int64_t group = 0; group < w.groups(); ++group) {
            const float want = column < 0 ? 0.0f : w.scale(e, group, column);
            wrong += panel.scales[static_cast<size_t>(group * 32 + j)] != want;
            int sum = 0;
            for (int64_t k = group * w.group; k < std::min(w.k, (group + 1) * w.group); ++k) {
              const float value = column < 0 ? 0.0f : w.value(e, k, column);
              wrong += strip_value(family, panel.codes, k, j) != value;
            }
            const int64_t end = std::min((w.k + 3) / 4 * 4, (group + 1) * w.group);
            for (int64_t k = group * w.group; family == Family::kS8 && k < end; ++k)
              sum += static_cast<int>(strip_value(family, panel.codes, k, j));
            if (family == Family::kS8) wrong += panel.sums[static_cast<size_t>(group * 32 + j)] != sum;
          }
        }
        ASSERT_EQ(wrong, 0) << ops.name << " K " << w.k << " N " << w.n << " group " << w.group << " panel "
                            << p << (source == packed.get() ? " packed" : " raw");
      }
    }
  }
}

TEST(GroupPanels, Int4OnEveryLevel) {
  for (const kernel::RowOps* ops : kernel::all_row_ops()) {
    if (!isa_levels()[static_cast<size_t>(ops->isa)].runnable) continue;
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{64, 64}, {130, 36}, {34, 70}, {6, 2}, {256, 96}}) {
      for (const int64_t group : kernel::kGroupSizes) {
        for (const DType scale : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
          const bool zeros = (k + group) % 3 != 0 || scale == DType::kFloat16;
          for (const Family family : {Family::kBf16, Family::kS8}) {
            check(Weights(DType::kInt4, scale, group, zeros, false, k, n), n % 4 == 0, family, *ops);
          }
        }
      }
    }
    check(Weights(DType::kInt4, DType::kFloat16, 32, true, true, 96, 72), true, Family::kS8, *ops);
  }
}

TEST(GroupPanels, Float8BlocksOnEveryLevel) {
  for (const kernel::RowOps* ops : kernel::all_row_ops()) {
    if (!isa_levels()[static_cast<size_t>(ops->isa)].runnable) continue;
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{128, 128}, {300, 332}, {5, 2}, {129, 520}}) {
      for (const bool gated : {false, true}) {
        for (const bool separate : {false, true}) {
          if (separate && !gated) continue;
          check(Weights(DType::kFloat8E4M3, DType::kFloat32, 128, false, separate, k, n), gated,
                Family::kBf16, *ops);
        }
      }
    }
  }
}

// E2M1 codes for products of integers: doubled values, half scales, sums.
TEST(GroupPanels, DoubledE2M1OnEveryLevel) {
  for (const kernel::RowOps* ops : kernel::all_row_ops()) {
    if (!isa_levels()[static_cast<size_t>(ops->isa)].runnable) continue;
    for (const int64_t k : {32, 64, 70, 2, 200}) {
      constexpr int64_t kColumns = 48;
      const int64_t pairs = (k + 63) / 64;
      std::mt19937 random(7);
      std::vector<uint8_t> codes(static_cast<size_t>(kColumns * k / 2)), scales(kColumns * pairs * 2);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(random());
      for (uint8_t& s : scales) s = static_cast<uint8_t>(random());
      scales[0] = 0, scales[1] = 255, scales[2] = 254;
      LinearWeights w;
      w.k_last = true;
      w.weight = {TensorView(codes.data(), DType::kFloat4E2M1, {1, kColumns, k})};
      w.scale = {TensorView(scales.data(), DType::kFloat8E8M0, {1, kColumns, pairs, 2})};
      auto made = PackedWeights::pack_linear2(w, 1);
      ASSERT_TRUE(made);
      auto source = pack::packed_source(*made);
      source->decode_to(Family::kS8, true);
      auto strip = base::Pages::allocate(static_cast<size_t>(source->strip_bytes()) + 64, false);
      for (int64_t p = 0; p < 2; ++p) {
        const Decoded panel(source->geometry(), source->panel(0, p, strip->data()), p == 1, *ops);
        for (int j = 0; j < 32 && p * 32 + j < kColumns; ++j) {
          const int64_t n = p * 32 + j;
          for (int64_t group = 0; group < (k + 31) / 32; ++group) {
            const uint8_t byte = scales[static_cast<size_t>(n * pairs * 2 + group)];
            const float scale = panel.scales[static_cast<size_t>(group * 32 + j)];
            if (byte == 255) {
              ASSERT_TRUE(std::isnan(scale));
            } else {
              ASSERT_EQ(scale, std::ldexp(1.0f, byte - 128)) << ops->name;
            }
            int sum = 0;
            for (int64_t i = group * 32; i < std::min(k, group * 32 + 32); ++i) {
              const int nibble = codes[static_cast<size_t>((n * k + i) / 2)] >> (i % 2 * 4) & 15;
              const float value =
                  format::find_format(DType::kFloat4E2M1)->decode(static_cast<uint32_t>(nibble));
              ASSERT_EQ(strip_value(Family::kS8, panel.codes, i, j), 2 * value) << ops->name;
              sum += static_cast<int>(2 * value);
            }
            ASSERT_EQ(panel.sums[static_cast<size_t>(group * 32 + j)], sum) << ops->name << " K " << k;
          }
        }
      }
    }
  }
}

// Zeros of FP8 have no sign, and a NaN of E4M3 makes its group of its column NaN, as it makes every sum.
TEST(GroupPanels, MxFp8HasNoNegativeZeroAndE4M3NanInScalesOnly) {
  constexpr int64_t kColumns = 40, kDepth = 70, kPairs = 2;
  std::vector<uint8_t> codes(kColumns * kDepth), scales(kColumns * kPairs * 2);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(100 + i % 50);
  for (const DType dtype : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    const bool e4m3 = dtype == DType::kFloat8E4M3;
    LinearWeights w;
    w.k_last = true;
    w.weight = {TensorView(codes.data(), dtype, {1, kColumns, kDepth})};
    w.scale = {TensorView(scales.data(), DType::kFloat8E8M0, {1, kColumns, kPairs, 2})};
    auto made = PackedWeights::pack_linear2(w, 1);
    ASSERT_TRUE(made) << made.status().message();
    const auto source = pack::packed_source(*made);
    int nan_groups = 0;
    for (int64_t n = 0; n < kColumns; ++n) {
      const auto* at = reinterpret_cast<const uint8_t*>(source->stored(0, n / 32)) + n % 32;
      for (int64_t group = 0; group < 3; ++group, at += 33 * 32) {
        bool nan = false;
        for (int64_t k = group * 32; k < std::min(kDepth, group * 32 + 32); ++k) {
          const uint8_t code = codes[static_cast<size_t>(n * kDepth + k)];
          nan |= e4m3 && (code & 0x7f) == 0x7f;
          ASSERT_EQ(at[32 * (1 + k % 32)], code == 0x80 ? 0 : code);
        }
        ASSERT_EQ(at[0], nan ? 255 : scales[static_cast<size_t>(n * kPairs * 2 + group)]);
        nan_groups += nan;
      }
    }
    EXPECT_EQ(nan_groups > 0, e4m3);
  }
}

// Weights stay in their stored width: half a byte or a byte, and their scales.
TEST(GroupPanels, PackedBytesAreThoseOfCodesAndScales) {
  const auto bytes_per_weight = [](const Weights& w) {
    auto made = PackedWeights::pack_linear2(w.view(), 2);
    EXPECT_TRUE(made) << made.status().message();
    return static_cast<double>((*made)->bytes()) / static_cast<double>(w.experts * w.k * w.n);
  };
  constexpr int64_t kDepth = 768, kColumns = 512;
  EXPECT_LE(bytes_per_weight(Weights(DType::kInt4, DType::kFloat16, 128, false, false, kDepth, kColumns)),
            0.51 + 2.0 / 128);
  EXPECT_LE(bytes_per_weight(Weights(DType::kInt4, DType::kFloat16, 32, true, false, kDepth, kColumns)),
            0.51 + 3.0 / 32);
  EXPECT_LE(bytes_per_weight(Weights(DType::kInt4, DType::kFloat32, 64, true, false, kDepth, kColumns)),
            0.51 + 5.0 / 64);
  EXPECT_LE(
      bytes_per_weight(Weights(DType::kFloat8E4M3, DType::kFloat32, 128, false, false, kDepth, kColumns)),
      1.04);
}

TEST(GroupPanels, WrongGroupsAreNamed) {
  const auto expect = [](LinearWeights w, const char* message) {
    auto result = pack::check_linear(w, false, "weight1");
    ASSERT_FALSE(result) << message;
    EXPECT_EQ(result.status().message(), message);
  };
  Weights int4(DType::kInt4, DType::kFloat16, 32, true, false, 64, 8);
  LinearWeights w = int4.view();
  w.scale_group = 48;
  expect(w, "weight1.scale_group = 48: expected 0 or one of 32, 64, 128 with int4 weights");
  w = int4.view();
  w.scale_group = 64;
  expect(w, "weight_scales1 has shape (2, 8, 2): expected (2, 8, 1)");
  w = int4.view();
  w.scale.clear();
  expect(
      w,
      "weight_scales1 has no tensors: expected float32 or float16 or bfloat16 (2, 8, 2) with int4 weights");
  w = int4.view();
  w.zero[0].dtype = DType::kInt4;
  expect(w, "weight1.zero has type int4: expected int8");
  w = int4.view();
  w.zero[0].shape[1] = 7;
  expect(w, "weight1.zero has shape (2, 7, 2): expected (2, 8, 2)");
  int4.zero[(1 * 8 + 3) * 2 + 1] = -121;
  expect(int4.view(), "weight1.zero of expert 1 at (3, 1) is -121: expected -120 to 119");
  Weights fp8(DType::kFloat8E4M3, DType::kFloat32, 128, false, false, 300, 200);
  w = fp8.view();
  w.scale_group = 64;
  expect(w, "weight1.scale_group = 64: expected 0 or 128 with float8_e4m3fn weights");
  w = fp8.view();
  w.scale[0].shape[1] = 3;
  expect(w, "weight_scales1 has shape (2, 3, 3): expected (2, 2, 3)");
  w = fp8.view();
  w.zero = w.scale;
  expect(w, "weight1.zero has 1 tensors: expected none without int4 weights with scale_group");
  w = fp8.view();
  w.weight[0].dtype = DType::kInt8;
  expect(w, "weight1.scale_group = 128: expected 0 with int8 weights");
  std::vector<TensorView> list{w.scale[0], w.scale[0]};
  w = fp8.view();
  for (TensorView& t : list) {
    t = TensorView(fp8.scales.data(), DType::kFloat32, {2, 3});
  }
  list[1].dtype = DType::kBFloat16;
  w.scale = list;
  expect(w, "weight_scales1[1] has type bfloat16: expected float32 like weight_scales1[0]");
}

}  // namespace
}  // namespace megamoe
