// quantise and dequantise on tensors: known values of the rules, strides, scale shapes, refusals.
#include "megamoe/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "format/bf16.h"

namespace megamoe {
namespace {

std::vector<Isa> levels() {
  std::vector<Isa> result;
  for (const IsaInfo& info : isa_levels()) {
    if (info.runnable) result.push_back(info.isa);
  }
  return result;
}

struct Quantised {
  std::vector<uint8_t> codes, scales;
};

/// One row of bfloat16 values by an MX rule.
Quantised mx(const char* rule, DType codes, const std::vector<float>& values, Isa isa) {
  std::vector<uint16_t> x;
  for (float value : values) x.push_back(format::bf16_from_float(value));
  const auto n = static_cast<int64_t>(x.size());
  Quantised q{std::vector<uint8_t>(static_cast<size_t>(n * dtype_bits(codes) / 8), 0xee),
              std::vector<uint8_t>(static_cast<size_t>((n + 31) / 32), 0xee)};
  QuantArguments arguments;
  arguments.isa = isa;
  const Status status =
      quantise(rule, TensorView(x.data(), DType::kBFloat16, {1, n}), TensorRef(q.codes.data(), codes, {1, n}),
               TensorRef(q.scales.data(), DType::kFloat8E8M0, {1, (n + 31) / 32}), arguments);
  EXPECT_TRUE(status) << status.message();
  return q;
}

std::vector<float> group_with(float largest) {
  std::vector<float> group(32, 0.1f);
  group[13] = largest;
  return group;
}

TEST(Quantise, Mxfp4ScaleBytes) {
  for (Isa isa : levels()) {
    const float largest[] = {1.2f, 2.7f, 5.5f, 6.0f, 7.0f};
    const int bytes[] = {125, 126, 127, 127, 127}, up[] = {125, 126, 127, 127, 128};
    for (int i = 0; i < 5; ++i) {
      const Quantised q = mx("mx_floor_e2m1", DType::kFloat4E2M1, group_with(largest[i]), isa);
      EXPECT_EQ(q.scales[0], bytes[i]) << largest[i];
      const Quantised u = mx("mx_round_up_e2m1", DType::kFloat4E2M1, group_with(largest[i]), isa);
      EXPECT_EQ(u.scales[0], up[i]) << largest[i];
      if (i == 4) {
        EXPECT_EQ(q.codes[6] >> 4, 7);  // 7 saturates to 6
        EXPECT_EQ(u.codes[6] >> 4, 6);  // 3.5 to the even neighbour 4 of scale 2
      }
    }
  }
}

TEST(Quantise, Mxfp8ScaleBytesOfBothRules) {
  for (Isa isa : levels()) {
    const float largest[] = {448, 450, 480, 956};
    const int floor[] = {127, 127, 127, 128}, up[] = {127, 128, 128, 129};
    for (int i = 0; i < 4; ++i) {
      const Quantised f = mx("mx_floor_e4m3", DType::kFloat8E4M3, group_with(largest[i]), isa);
      const Quantised u = mx("mx_round_up_e4m3", DType::kFloat8E4M3, group_with(largest[i]), isa);
      EXPECT_EQ(f.scales[0], floor[i]) << largest[i];
      EXPECT_EQ(u.scales[0], up[i]) << largest[i];
      EXPECT_EQ(f.codes[13], 0x7e) << largest[i];
      EXPECT_NE(u.codes[13] & 0x7f, 0x7f);
    }
    // 956: 896 by saturation under floor, 960 under round-up.
    float y[32];
    for (const auto& [rule, want] : {std::pair{"mx_floor_e4m3", 896.0f}, {"mx_round_up_e4m3", 960.0f}}) {
      const Quantised q = mx(rule, DType::kFloat8E4M3, group_with(956), isa);
      ASSERT_TRUE(dequantise(rule, TensorView(q.codes.data(), DType::kFloat8E4M3, {1, 32}),
                             TensorView(q.scales.data(), DType::kFloat8E8M0, {1, 1}),
                             TensorRef(y, DType::kFloat32, {1, 32})));
      EXPECT_EQ(y[13], want);
    }
  }
}

TEST(Quantise, ScaleBytesByTheTable) {
  struct Line {
    float largest;
    int floor_e4m3, floor_e5m2, floor_e2m1, up_e4m3, up_e5m2, amax_e4m3, amax_e5m2;
  };
  constexpr Line kLines[] = {{1.0f, 119, 112, 125, 119, 112, 119, 112},
                             {3.9f, 120, 113, 126, 121, 114, 121, 114},
                             {448.0f, 127, 120, 133, 127, 120, 127, 120},
                             {450.0f, 127, 120, 133, 128, 121, 128, 121},
                             {57600.0f, 134, 127, 140, 135, 128, 135, 128},
                             {1e-5f, 102, 95, 108, 102, 95, 105, 98},
                             {1e-38f, 0, 0, 0, 1, 1, 105, 98},
                             {0.0f, 0, 0, 0, 0, 0, 105, 98}};
  for (Isa isa : levels()) {
    for (const Line& line : kLines) {
      std::vector<float> group(32, 0.0f);
      group[31] = -line.largest;
      auto byte = [&](const char* rule, DType codes) { return int{mx(rule, codes, group, isa).scales[0]}; };
      EXPECT_EQ(byte("mx_floor_e4m3", DType::kFloat8E4M3), line.floor_e4m3) << line.largest;
      EXPECT_EQ(byte("mx_floor_e5m2", DType::kFloat8E5M2), line.floor_e5m2) << line.largest;
      EXPECT_EQ(byte("mx_floor_e2m1", DType::kFloat4E2M1), line.floor_e2m1) << line.largest;
      EXPECT_EQ(byte("mx_round_up_e4m3", DType::kFloat8E4M3), line.up_e4m3) << line.largest;
      EXPECT_EQ(byte("mx_round_up_e5m2", DType::kFloat8E5M2), line.up_e5m2) << line.largest;
      EXPECT_EQ(byte("mx_round_up_amax_e4m3", DType::kFloat8E4M3), line.amax_e4m3) << line.largest;
      EXPECT_EQ(byte("mx_round_up_amax_e5m2", DType::kFloat8E5M2), line.amax_e5m2) << line.largest;
    }
  }
}

TEST(Quantise, E2M1MidpointsUnderScaleOne) {
  std::vector<float> group(32, 0.0f);
  const float in[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const int want[] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    group[static_cast<size_t>(2 * i)] = in[i];
    group[static_cast<size_t>(2 * i + 1)] = -in[i];
  }
  for (Isa isa : levels()) {
    const Quantised q = mx("mx_floor_e2m1", DType::kFloat4E2M1, group, isa);
    EXPECT_EQ(q.scales[0], 127);
    for (int i = 0; i < 7; ++i)
      EXPECT_EQ(q.codes[static_cast<size_t>(i)], want[i] | (want[i] | 8) << 4) << in[i];
  }
}

TEST(Quantise, SubnormalGroupsOfTheTwoFloorRules) {
  const std::vector<float> group(32, -0x1.8p-128f);
  for (Isa isa : levels()) {
    const Quantised zero = mx("mx_floor_e2m1", DType::kFloat4E2M1, group, isa);
    const Quantised kept = mx("mx_floor_subnormal_e2m1", DType::kFloat4E2M1, group, isa);
    EXPECT_EQ(zero.scales[0], 0);
    EXPECT_EQ(kept.scales[0], 0);
    EXPECT_EQ(zero.codes[0], 0x88);
    EXPECT_EQ(kept.codes[0], 0xaa);  // -0.75 of 2^-127 to the even neighbour 1
  }
}

TEST(Dequantise, ScaleBytesAtTheEnds) {
  const std::vector<uint8_t> codes(160, 0x38);  // 1.0 in E4M3
  const uint8_t bytes[5] = {0, 1, 127, 254, 255};
  for (Isa isa : levels()) {
    std::vector<float> y(160);
    QuantArguments arguments;
    arguments.isa = isa;
    ASSERT_TRUE(dequantise("mx_floor_e4m3", TensorView(codes.data(), DType::kFloat8E4M3, {1, 160}),
                           TensorView(bytes, DType::kFloat8E8M0, {1, 5}),
                           TensorRef(y.data(), DType::kFloat32, {1, 160}), arguments));
    EXPECT_EQ(y[31], 0x1p-127f);
    EXPECT_EQ(y[32], 0x1p-126f);
    EXPECT_EQ(y[64], 1.0f);
    EXPECT_EQ(y[127], 0x1p127f);
    for (size_t i = 128; i < 160; ++i) EXPECT_TRUE(std::isnan(y[i]));
  }
}

TEST(Quantise, ZeroRowsGiveFiniteScalesAndZeroValues) {
  for (const QuantRuleInfo& rule : quant_rules()) {
    if (rule.takes_scale) continue;
    for (DType input : rule.inputs) {
      for (float value : {0.0f, -0.0f, 1e-45f}) {
        constexpr int64_t kColumns = 64;
        std::vector<float> x(kColumns, 0.0f);
        x[5] = value;
        std::vector<uint8_t> typed(kColumns * 4), codes(kColumns, 0xff), scales(256, 0xff);
        const TensorRef row(typed.data(), input, {1, kColumns});
        ASSERT_TRUE(cast(TensorView(x.data(), DType::kFloat32, {1, kColumns}), row));
        const int64_t groups = rule.group == 0 ? 1 : (kColumns + rule.group - 1) / rule.group;
        const TensorRef q(codes.data(), rule.codes, {1, kColumns});
        TensorRef s;
        if (rule.scales != DType::kUndefined) s = TensorRef(scales.data(), rule.scales, {1, groups});
        ASSERT_TRUE(quantise(rule.name, view(row), q, s)) << rule.name;
        std::vector<float> y(kColumns, 1.0f);
        ASSERT_TRUE(
            dequantise(rule.name, view(q), view(s), TensorRef(y.data(), DType::kFloat32, {1, kColumns})));
        for (float v : y) EXPECT_EQ(v, 0.0f) << rule.name << " " << dtype_name(input) << " " << value;
        if (rule.scales == DType::kFloat32) {
          EXPECT_TRUE(std::isfinite(*reinterpret_cast<const float*>(scales.data()))) << rule.name;
        } else if (s.present()) {
          EXPECT_LT(scales[0], 255) << rule.name;
        }
      }
    }
  }
}

TEST(Quantise, StridesAndScaleShapes) {
  constexpr int64_t kRows = 3, kColumns = 70;
  std::vector<uint16_t> x(kRows * kColumns * 2);
  for (size_t i = 0; i < x.size(); ++i) x[i] = format::bf16_from_float(std::sin(static_cast<float>(i)) * 100);
  TensorView strided(x.data(), DType::kBFloat16, {kRows, kColumns});
  strided.strides[0] = 1;
  strided.strides[1] = kRows;
  std::vector<uint16_t> dense;
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t h = 0; h < kColumns; ++h) dense.push_back(x[static_cast<size_t>(t + h * kRows)]);
  }
  std::vector<uint8_t> want(kRows * kColumns), want_scales(kRows * 3);
  ASSERT_TRUE(quantise("mx_round_up_e5m2", TensorView(dense.data(), DType::kBFloat16, {kRows, kColumns}),
                       TensorRef(want.data(), DType::kFloat8E5M2, {kRows, kColumns}),
                       TensorRef(want_scales.data(), DType::kFloat8E8M0, {kRows, 3})));
  // Gaps between the rows of codes, padded scales as pairs.
  std::vector<uint8_t> codes(kRows * 80, 0xcc), scales(kRows * 4, 0xcc);
  TensorRef code_rows(codes.data(), DType::kFloat8E5M2, {kRows, kColumns});
  code_rows.strides[0] = 80;
  ASSERT_TRUE(quantise("mx_round_up_e5m2", strided, code_rows,
                       TensorRef(scales.data(), DType::kFloat8E8M0, {kRows, 2, 2})));
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t h = 0; h < 80; ++h) {
      const int expected = h < kColumns ? want[static_cast<size_t>(t * kColumns + h)] : 0xcc;
      ASSERT_EQ(codes[static_cast<size_t>(t * 80 + h)], expected);
    }
    for (int64_t g = 0; g < 4; ++g) {
      ASSERT_EQ(scales[static_cast<size_t>(t * 4 + g)],
                g < 3 ? want_scales[static_cast<size_t>(t * 3 + g)] : 0);
    }
  }
  // Values come back into a strided y.
  std::vector<float> y(kRows * kColumns), y2(kRows * kColumns);
  TensorRef columns(y2.data(), DType::kFloat32, {kRows, kColumns});
  columns.strides[0] = 1;
  columns.strides[1] = kRows;
  const TensorView padded(scales.data(), DType::kFloat8E8M0, {kRows, 4});
  ASSERT_TRUE(dequantise("mx_round_up_e5m2", view(code_rows), padded,
                         TensorRef(y.data(), DType::kFloat32, {kRows, kColumns})));
  ASSERT_TRUE(dequantise("mx_round_up_e5m2", view(code_rows), padded, columns));
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t h = 0; h < kColumns; ++h)
      ASSERT_EQ(y2[static_cast<size_t>(t + h * kRows)], y[static_cast<size_t>(t * kColumns + h)]);
  }
}

TEST(Dequantise, CodesAndScalesOfAnyStrides) {
  constexpr int64_t kRows = 3, kColumns = 200;
  std::vector<uint8_t> codes(kRows * kColumns);
  std::vector<float> scales(kRows * 2);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i % 120);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 1.0f + static_cast<float>(i);
  const TensorView dense(codes.data(), DType::kFloat8E4M3, {kRows, kColumns});
  std::vector<float> want(kRows * kColumns), got(want.size());
  ASSERT_TRUE(dequantise("fp8_block128_e4m3", dense, TensorView(scales.data(), DType::kFloat32, {kRows, 2}),
                         TensorRef(want.data(), DType::kFloat32, {kRows, kColumns})));
  // Columns first, and rows from the last one on.
  std::vector<uint8_t> turned(codes.size());
  std::vector<float> turned_scales(scales.size());
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t h = 0; h < kColumns; ++h) {
      turned[static_cast<size_t>(h * kRows + kRows - 1 - t)] = codes[static_cast<size_t>(t * kColumns + h)];
    }
    for (int64_t g = 0; g < 2; ++g) {
      turned_scales[static_cast<size_t>(g * kRows + kRows - 1 - t)] = scales[static_cast<size_t>(t * 2 + g)];
    }
  }
  TensorView strided(turned.data() + kRows - 1, DType::kFloat8E4M3, {kRows, kColumns});
  strided.strides[0] = -1;
  strided.strides[1] = kRows;
  TensorView pairs(turned_scales.data() + kRows - 1, DType::kFloat32, {kRows, 1, 2});
  pairs.strides[0] = -1;
  pairs.strides[2] = kRows;
  TensorView flat(turned_scales.data() + kRows - 1, DType::kFloat32, {kRows, 2});
  flat.strides[0] = -1;
  flat.strides[1] = kRows;
  for (const TensorView& of : {pairs, flat}) {
    std::fill(got.begin(), got.end(), -1.0f);
    const Status status = dequantise("fp8_block128_e4m3", strided, of,
                                     TensorRef(got.data(), DType::kFloat32, {kRows, kColumns}));
    ASSERT_TRUE(status) << status.message();
    EXPECT_EQ(got, want);
  }
}

TEST(Quantise, Refusals) {
  std::vector<float> memory(4096);
  const TensorView x(memory.data(), DType::kBFloat16, {2, 64});
  const TensorRef codes(memory.data() + 1024, DType::kFloat8E4M3, {2, 64});
  const TensorRef scales(memory.data() + 2048, DType::kFloat8E8M0, {2, 2});
  auto message = [](const char* rule, const TensorView& x, const TensorRef& q, const TensorRef& s,
                    const QuantArguments& a = {}) { return quantise(rule, x, q, s, a).message(); };
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, scales), "");
  EXPECT_EQ(message("mx", x, codes, scales).substr(0, 49),
            "rule = \"mx\": expected one of int8_static, int8_pe");
  EXPECT_EQ(message("mx_floor_e4m3", TensorView(memory.data(), DType::kFloat32, {2, 64}), codes, scales),
            "x has type float32: expected bfloat16 or float16");
  EXPECT_EQ(message("mx_floor_e4m3", TensorView(memory.data(), DType::kBFloat16, {128}), codes, scales),
            "x has shape (128,): expected two dimensions");
  EXPECT_EQ(message("mx_floor_e5m2", x, codes, scales), "codes has type float8_e4m3fn: expected float8_e5m2");
  EXPECT_EQ(message("mx_floor_e4m3", x, TensorRef(codes.data, codes.dtype, {2, 63}), scales),
            "codes has shape (2, 63): expected (2, 64)");
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, {}), "scales is missing: expected float8_e8m0");
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, TensorRef(scales.data, scales.dtype, {2, 3})),
            "scales has shape (2, 3): expected (2, 2) or (2, 1, 2)");
  EXPECT_EQ(message("fp8_block128_e4m3", x, codes, TensorRef(scales.data, DType::kFloat32, {2, 3})),
            "scales has shape (2, 3): expected (2, 1), (2, 2) or (2, 1, 2)");
  EXPECT_EQ(message("hif8_cast", x, TensorRef(codes.data, DType::kHiFloat8, {2, 64}), scales),
            "scales has type float8_e8m0: expected none with hif8_cast");
  EXPECT_EQ(message("hif8_per_tensor", x, TensorRef(codes.data, DType::kHiFloat8, {2, 64}), {}),
            "scale is missing: expected one with hif8_per_tensor");
  TensorRef gaps(codes.data, codes.dtype, {2, 64});
  gaps.strides[1] = 2;
  EXPECT_EQ(message("mx_floor_e4m3", x, gaps, scales),
            "codes has stride 2 in dimension 1: expected rows without gaps");
  TensorRef apart(scales.data, scales.dtype, {2, 1, 2});
  apart.strides[2] = 3;
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, apart),
            "scales has stride 3 in dimension 2: expected rows without gaps");
  QuantArguments no_level;
  no_level.isa = static_cast<Isa>(kIsaCount);
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, scales, no_level),
            "isa = unknown: expected one of generic, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  QuantArguments with_offset;
  with_offset.offset = 1.0f;
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, scales, with_offset),
            "offset is given: expected none with mx_floor_e4m3");
  QuantArguments with_smooth;
  with_smooth.smooth = TensorView(memory.data(), DType::kFloat32, {2, 64});
  EXPECT_EQ(message("mx_floor_e4m3", x, codes, scales, with_smooth),
            "smooth is given: expected none with mx_floor_e4m3");
  EXPECT_EQ(message("int8_per_token", x, TensorRef(codes.data, DType::kInt8, {2, 64}),
                    TensorRef(scales.data, DType::kFloat32, {2}), with_smooth),
            "smooth has shape (2, 64): expected (64,) or (1, 64)");
  EXPECT_EQ(
      message("int4_dynamic", TensorView(memory.data(), DType::kBFloat16, {2, 63}),
              TensorRef(codes.data, DType::kInt4, {2, 63}), TensorRef(scales.data, DType::kFloat32, {2})),
      "x has shape (2, 63): expected an even number of columns with int4_dynamic");
  EXPECT_EQ(message("mx_floor_e4m3", TensorView(nullptr, DType::kBFloat16, {2, 64}), codes, scales),
            "x = null: expected memory of shape (2, 64)");
  EXPECT_EQ(message("mx_floor_e4m3", TensorView(memory.data(), DType::kBFloat16, {2, 64}, Layout::kFractalNz),
                    codes, scales),
            "x has layout FRACTAL_NZ: expected ND");
  EXPECT_EQ(message("mx_floor_e4m3", TensorView(nullptr, DType::kBFloat16, {0, 64}),
                    TensorRef(nullptr, DType::kFloat8E4M3, {0, 64}),
                    TensorRef(nullptr, DType::kFloat8E8M0, {0, 2})),
            "");
  EXPECT_EQ(dequantise("mx_floor_e4m3", view(codes), view(scales),
                       TensorRef(memory.data(), DType::kFloat16, {2, 64}))
                .message(),
            "y has type float16: expected float32");
}

}  // namespace
}  // namespace megamoe
