// A product with scales per group of K on both sides, by one way of a kernel of the registry and by plain
// loops in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "format/bf16.h"
#include "format/float4_e2m1.h"
#include "format/float8_e4m3.h"
#include "kernel/levels.h"

namespace megamoe::kernel {

/// One way of a kernel.
struct Way {
  const Gemm* gemm;
  WeightCode code;     ///< kStrip, or what the coded tile reads
  bool keeps = false;  ///< the coded tile has memory to decode once for several tiles

  int most_rows() const {
    return code == WeightCode::kStrip ? gemm->max_rows : gemm->coded_rows[static_cast<int>(code)];
  }
};

inline std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const Gemm* gemm : all_group_gemms()) {
    if (gemm->tile != nullptr) ways.push_back({gemm, WeightCode::kStrip});
    for (int code = 0; code < kWeightCodeCount; ++code) {
      if (gemm->coded_rows[code] != 0) ways.push_back({gemm, static_cast<WeightCode>(code)});
      if (gemm->kept_rows[code] != 0) ways.push_back({gemm, static_cast<WeightCode>(code), true});
    }
  }
  return ways;
}

/// A [rows][k] and B [k][32] as numbers that have codes in the family, and a scale for each group of both.
struct Problem {
  Problem(const Way& of, int64_t depth, int64_t per_group, bool scaled, uint32_t seed)
      : way(of),
        rows(of.most_rows()),
        k(depth),
        group(of.code == WeightCode::kE2M1 ? kMxGroup : per_group),
        groups(groups_of(depth, group)) {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < rows * k; ++i) {
      const int code = static_cast<int>(random() % 256) - 128;
      if (way.code == WeightCode::kE2M1) {
        a.push_back(is_s8() ? draw(static_cast<uint8_t>(code), 0) : e4m3(static_cast<uint8_t>(code)));
      } else {
        a.push_back(is_s8() ? static_cast<float>(code) : static_cast<float>(code) / 16);
      }
    }
    // Weights without zero points, with any, and with those of four bits.
    std::vector<int> least(static_cast<size_t>(groups * kPanelColumns), -8);
    for (int& x : least) {
      if (seed % 3 == 1) x = static_cast<int>(random() % 240) - 127;
      if (seed % 3 == 2) x = static_cast<int>(random() % 16) - 15;
    }
    for (int64_t i = 0; i < k * kPanelColumns; ++i) {
      const auto at = static_cast<size_t>(i / kPanelColumns / group * kPanelColumns + i % kPanelColumns);
      b.push_back(draw(static_cast<uint8_t>(random()), least[at]));
    }
    for (int64_t i = 0; i < groups * kPanelColumns; ++i) {
      scales.push_back(way.code == WeightCode::kE2M1 ? std::ldexp(1.0f, static_cast<int>(random() % 8) - 4)
                                                     : 0.5f + static_cast<float>(random() % 1000) / 700.f);
    }
    for (int64_t i = 0; scaled && i < rows * groups; ++i) {
      const float power = std::ldexp(1.0f, static_cast<int>(random() % 30) - 15);
      row_scales.push_back(is_s8() ? power : power * (1.0f + static_cast<float>(random() % 100) / 100.f));
    }
  }

  /// A number that the form of the weights has, for int4 one of sixteen from `least` on.
  float draw(uint8_t byte, int least) const {
    switch (way.code) {
      case WeightCode::kInt4Groups:
        return static_cast<float>(least + byte % 16);
      case WeightCode::kE4M3Groups:  // below 16
        return format::e4m3_to_float(static_cast<uint8_t>((byte & 0x80) | byte % 88));
      case WeightCode::kE2M1:
        return 2 * format::e2m1_to_float(byte % 16);
      default: {
        const int code = byte - 128;
        return is_s8() ? static_cast<float>(code) : static_cast<float>(code) / 16;
      }
    }
  }
  /// Any E4M3 value but NaN.
  static float e4m3(uint8_t byte) { return (byte & 0x7f) == 0x7f ? 0 : format::e4m3_to_float(byte); }
  const Gemm& gemm() const { return *way.gemm; }
  bool is_s8() const { return gemm().family == Family::kS8; }
  size_t code_bytes() const { return is_s8() ? 1 : 2; }
  void put(unsigned char* at, float code) const {
    if (is_s8()) {
      *at = static_cast<unsigned char>(static_cast<int8_t>(code));
    } else {
      const uint16_t bits = format::bf16_from_float(code);
      std::memcpy(at, &bits, sizeof bits);
    }
  }

  /// The largest weight whose negative is one, too.
  float largest_of_rows() const {
    if (way.code != WeightCode::kE2M1) return 127;
    return is_s8() ? 12 : 448;
  }
  float largest() const {
    return way.code == WeightCode::kE4M3Groups ? 448.0f : way.code == WeightCode::kE2M1 ? 12.0f : 127.0f;
  }
  /// B as it is stored. Sixteen neighbouring numbers have codes of int4 under a zero point.
  std::vector<unsigned char> stored(GroupForm& form) const {
    if (way.code != WeightCode::kE2M1) form = {group, DType::kFloat32, false};
    std::vector<int> zeros(static_cast<size_t>(groups * kPanelColumns));
    for (int64_t i = 0; way.code == WeightCode::kInt4Groups && i < groups * kPanelColumns; ++i) {
      float low = 127, high = -128;
      for (int64_t at = i / kPanelColumns * group; at < std::min(k, (i / kPanelColumns + 1) * group); ++at) {
        low = std::min(low, b[at * kPanelColumns + i % kPanelColumns]);
        high = std::max(high, b[at * kPanelColumns + i % kPanelColumns]);
      }
      if (low < -8 || high > 7) zeros[i] = -8 - static_cast<int>(low);
      if (zeros[i] < -120) zeros[i] = -120;
      if (zeros[i] > 119) zeros[i] = 119;
      form.zeros |= zeros[i] != 0;
    }
    std::vector<unsigned char> bytes(
        static_cast<size_t>(stored_panel_bytes(way.code, gemm().family, k, form)));
    unsigned char* at = bytes.data();
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t end = std::min(k, (g + 1) * group), count = end - g * group;
      const float* const scale = scales.data() + g * kPanelColumns;
      for (int c = 0; c < kPanelColumns; ++c) {
        if (way.code == WeightCode::kE2M1) {
          at[c] = static_cast<unsigned char>(std::isnan(scale[c]) ? 255 : std::ilogb(scale[c]) + 128);
        } else {
          std::memcpy(at + 4 * c, scale + c, sizeof(float));
          if (form.zeros) {
            at[form.scale_bytes() + c] = static_cast<unsigned char>(zeros[g * kPanelColumns + c]);
          }
        }
      }
      at += way.code == WeightCode::kE2M1 ? kPanelColumns : form.header_bytes();
      const bool nibbles = way.code != WeightCode::kE4M3Groups;
      for (int64_t i = 0; i < count; ++i) {
        for (int c = 0; c < kPanelColumns; ++c) {
          const float value = b[(g * group + i) * kPanelColumns + c];
          int code = 0;
          if (way.code == WeightCode::kInt4Groups) {
            code = static_cast<int>(value) + zeros[g * kPanelColumns + c] + 8;
          } else {
            const bool e4m3 = way.code == WeightCode::kE4M3Groups;
            const auto stands_for = [&](int bits) {
              const auto byte = static_cast<uint8_t>(bits);
              return e4m3 ? format::e4m3_to_float(byte) : 2 * format::e2m1_to_float(byte);
            };
            while (stands_for(code) != value) ++code;
          }
          if (nibbles) {
            at[(i / 8 * kPanelColumns + c) * 4 + i % 4] |=
                static_cast<unsigned char>(code << (i % 8 / 4 * 4));
          } else {
            at[i * kPanelColumns + c] = static_cast<unsigned char>(code);
          }
        }
      }
      at += way.code == WeightCode::kE2M1 ? kMxGroup * kPanelColumns / 2
            : nibbles                     ? (count + 7) / 8 * kPanelColumns * 4
                                          : (count + 1) / 2 * kPanelColumns * 2;
    }
    return bytes;
  }

  /// Runs rows [first, first + count) as one tile; returns [count][32] values. With the weights of another
  /// problem as the next panel both are taken at once: [2][count][32].
  std::vector<float> run(int first, int count, const Problem* next = nullptr) const {
    const size_t stride = static_cast<size_t>(k + 3) * code_bytes();  // a gap between rows
    Guarded<unsigned char> codes(stride * static_cast<size_t>(count));
    std::memset(codes.data(), 0xff, stride * static_cast<size_t>(count));
    for (int r = 0; r < count; ++r) {
      for (int64_t i = 0; i < k; ++i)
        put(codes.data() + r * stride + i * code_bytes(), a[(first + r) * k + i]);
    }
    Guarded<unsigned char> packed(gemm().packed_bytes(count, k));
    PackRows pack{codes.data(), static_cast<ptrdiff_t>(stride), count, k, packed.data()};
    pack.group = group;
    if (!row_scales.empty()) {
      pack.scales = row_scales.data() + first * groups;
      pack.scale_bytes = static_cast<ptrdiff_t>(groups * sizeof(float));
    }
    gemm().pack_rows(pack);
    const size_t values = static_cast<size_t>(count) * kPanelColumns * (next == nullptr ? 1 : 2);
    Guarded<float> c(values);
    Tile tile{packed.data(), count, k, nullptr, nullptr, c.data(), nullptr, 0};
    tile.group = group;
    tile.row_scaled = !row_scales.empty();
    if (way.code == WeightCode::kStrip) {
      run_strip(tile);
    } else {
      std::vector<unsigned char> bytes = stored(tile.form);
      if (next != nullptr) {
        GroupForm form;
        const std::vector<unsigned char> more = next->stored(form);
        EXPECT_EQ(form.zeros, tile.form.zeros) << "panels of one form";
        bytes.insert(bytes.end(), more.begin(), more.end());
        tile.panels = 2;
      }
      Guarded<unsigned char> panel(bytes.size());
      std::copy(bytes.begin(), bytes.end(), panel.data());
      tile.panel = panel.data();
      const auto run = gemm().coded_tile[static_cast<int>(way.code)];
      way.keeps ? run_ranges(tile, run) : run(tile);
      EXPECT_TRUE(panel.intact());
    }
    EXPECT_TRUE(packed.intact() && c.intact() && codes.intact());
    return std::vector<float>(c.data(), c.data() + values);
  }

  /// k of a range.
  int64_t range() const { return k > 4 * kGroupSizes[2] ? kGroupSizes[2] : k; }

  /// Runs a tile that keeps range after range: as the one that decodes, then as one that comes after it.
  void run_ranges(Tile& tile, void (*run)(const Tile&)) const {
    const auto* const panel = static_cast<const unsigned char*>(tile.panel);
    auto* const c = static_cast<float*>(tile.c);
    const auto values = static_cast<size_t>(tile.rows) * kPanelColumns;
    for (int64_t begin = 0; begin < k; begin += range()) {
      tile.k_begin = begin;
      tile.k = std::min(range(), k - begin);
      tile.accumulate = begin > 0;
      tile.panel = panel + stored_panel_bytes(way.code, gemm().family, begin, tile.form);
      Guarded<std::byte> kept(static_cast<size_t>(kept_bytes(tile.k)));
      std::memset(kept.data(), 0xff, static_cast<size_t>(kept_bytes(tile.k)));
      tile.kept = kept.data();
      const std::vector<float> before(c, c + values);
      tile.decoded = false;
      run(tile);
      const std::vector<float> first(c, c + values);
      std::copy(before.begin(), before.end(), c);
      tile.decoded = true;
      run(tile);
      EXPECT_EQ(0, std::memcmp(first.data(), c, values * sizeof(float)));
      EXPECT_TRUE(kept.intact());
    }
  }

  /// Multiplies a strip, in ranges of K where it has several groups.
  void run_strip(Tile& tile) const {
    Guarded<unsigned char> panel(static_cast<size_t>(panel_bytes(gemm().family, k)));
    std::memset(panel.data(), 0, static_cast<size_t>(panel_bytes(gemm().family, k)));
    Guarded<int32_t> sums(static_cast<size_t>(groups * kPanelColumns));
    std::memset(sums.data(), 0, static_cast<size_t>(groups * kPanelColumns) * sizeof(int32_t));
    const int per_dword = k_per_dword(gemm().family);
    for (int64_t i = 0; i < k; ++i) {
      for (int c = 0; c < kPanelColumns; ++c) {
        const float code = b[i * kPanelColumns + c];
        put(panel.data() + (i / per_dword * kPanelColumns + c) * 4 + i % per_dword * code_bytes(), code);
        if (is_s8()) sums[i / group * kPanelColumns + c] += static_cast<int32_t>(code);
      }
    }
    for (int64_t begin = 0; begin < k; begin += range()) {
      tile.k_begin = begin;
      tile.k = std::min(range(), k - begin);
      tile.accumulate = begin > 0;
      tile.panel = panel.data() + panel_bytes(gemm().family, begin);
      tile.column_sums = is_s8() ? sums.data() + begin / group * kPanelColumns : nullptr;
      tile.group_scales = scales.data() + begin / group * kPanelColumns;
      gemm().tile(tile);
    }
    EXPECT_TRUE(panel.intact() && sums.intact());
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

  Way way;
  int rows;
  int64_t k, group, groups;
  std::vector<float> a, b, scales, row_scales;
};

}  // namespace megamoe::kernel
