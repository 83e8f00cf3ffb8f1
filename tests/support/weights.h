// Random weights of one linear layer in the format of a scenario.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "format/bf16.h"
#include "format/float16.h"
#include "megamoe/megamoe.h"

namespace megamoe::test {

/// How a scenario stores its weights.
struct ScenarioTraits {
  const char* name;
  int mode;
  DType out;
  DType weight;
  double bound;                            ///< relative error of y against the reference
  int64_t group = 0;                       ///< scale_group
  DType group_scales = DType::kUndefined;  ///< type of its scales

  bool mx() const {
    return group == 0 &&
           (weight == DType::kFloat8E4M3 || weight == DType::kFloat8E5M2 || weight == DType::kFloat4E2M1);
  }
  /// Tokens travel as MX codes, and may come so.
  bool mx_tokens() const { return mx() && out != DType::kUndefined; }
  bool channel_scales() const { return group == 0 && (weight == DType::kInt8 || weight == DType::kInt4); }
  /// The bias is part of the scheme, and another one may be added.
  bool compensates() const { return channel_scales() && nibbles(); }
  bool zeros() const { return group != 0 && nibbles(); }
  /// Rows and columns of group scales of a layer K x N.
  int64_t scale_rows(int64_t n) const { return weight == DType::kFloat8E4M3 ? (n + 127) / 128 : n; }
  int64_t groups(int64_t k) const { return (k + group - 1) / group; }
  bool nibbles() const { return dtype_bits(weight) == 4; }
};

inline constexpr ScenarioTraits kScenarioTraits[] = {
    {"A16W16", 0, DType::kUndefined, DType::kBFloat16, 2e-3},
    {"A8W8-INT", 2, DType::kInt8, DType::kInt8, 1e-3},
    {"A8W4-INT", 2, DType::kInt8, DType::kInt4, 1e-3},
    {"A8W8-FP", 4, DType::kFloat8E4M3, DType::kFloat8E4M3, 2e-3},
    {"A8W8-FP-E5M2", 4, DType::kFloat8E5M2, DType::kFloat8E5M2, 2e-3},
    {"A16W4-FP", 0, DType::kUndefined, DType::kFloat4E2M1, 2e-3},
    {"A8W4-FP", 4, DType::kFloat8E4M3, DType::kFloat4E2M1, 2e-3},
    {"A4W4-FP", 4, DType::kFloat4E2M1, DType::kFloat4E2M1, 2e-3},
    {"A16W4-GROUP", 0, DType::kUndefined, DType::kInt4, 2e-3, 32, DType::kFloat16},
    {"A8W4-GROUP", 2, DType::kInt8, DType::kInt4, 1e-3, 64, DType::kBFloat16},
    {"A16W8-BLOCK", 0, DType::kUndefined, DType::kFloat8E4M3, 2e-3, 128, DType::kFloat32},
    {"A8W8-BLOCK", 3, DType::kFloat8E4M3, DType::kFloat8E4M3, 2e-3, 128, DType::kFloat32},
};

inline const ScenarioTraits& traits_of(std::string_view name) {
  for (const ScenarioTraits& traits : kScenarioTraits) {
    if (name == traits.name) return traits;
  }
  throw std::runtime_error("no scenario " + std::string(name));
}

inline std::vector<const char*> scenario_names() {
  std::vector<const char*> names;
  for (const ScenarioTraits& traits : kScenarioTraits) names.push_back(traits.name);
  return names;
}

/// A byte of codes of moderate size: MXFP8 codes of magnitude 0.25 to 8, all int8, all pairs of nibbles.
inline int moderate_code(DType type, std::mt19937& random) {
  const int any = static_cast<int>(random() % 256);
  if (type == DType::kFloat8E4M3) return (any & 0x87) | (5 + static_cast<int>(random() % 5)) << 3;
  if (type == DType::kFloat8E5M2) return (any & 0x83) | (13 + static_cast<int>(random() % 5)) << 2;
  return any;
}

/// One linear layer of `experts` experts, K x N: (E, K, N), or (E, N, K) with MX codes.
class ScenarioWeights {
 public:
  ScenarioWeights() = default;
  ScenarioWeights(const ScenarioTraits& traits, int64_t experts, int64_t k, int64_t n, bool biases,
                  std::mt19937& random)
      : traits_(&traits), k_(k), n_(n) {
    fill_codes(experts * k * n, random);
    if (traits.mx()) fill_mx_scales(experts * n * ((k + 63) / 64) * 2, random);
    if (traits.channel_scales()) fill_channel_scales(experts * n, random);
    if (traits.group != 0) fill_group_scales(experts * traits.scale_rows(n) * traits.groups(k), random);
    if (!biases) return;
    // Of the size of the values they are added to; the bias of int4 stands before the row scale of about
    // 0.03.
    std::normal_distribution<float> before(0.f, 20.f), after(0.f, 0.5f);
    for (int64_t i = 0; i < experts * n; ++i) {
      if (traits.compensates()) added_bias_.push_back(after(random));
      bias_.push_back(traits.compensates() ? before(random) : after(random));
    }
  }

  /// Experts [first, first + count).
  LinearWeights view(int64_t first, int64_t count) const {
    LinearWeights result;
    if (count == 0) return result;
    const std::byte* start = weight_.data() + first * k_ * n_ * dtype_bits(traits_->weight) / 8;
    const auto per_column = [&](const std::vector<float>& values) {
      return values.empty()
                 ? std::vector<TensorView>()
                 : std::vector{TensorView(values.data() + first * n_, DType::kFloat32, {count, n_})};
    };
    result.bias = per_column(bias_);
    result.added_bias = per_column(added_bias_);
    if (traits_->mx()) {
      const int64_t groups = (k_ + 63) / 64;
      result.k_last = true;
      result.weight = {TensorView(start, traits_->weight, {count, n_, k_})};
      result.scale = {
          TensorView(scale_.data() + first * n_ * groups * 2, DType::kFloat8E8M0, {count, n_, groups, 2})};
      return result;
    }
    result.weight = {TensorView(start, traits_->weight, {count, k_, n_})};
    if (traits_->group != 0) {
      const int64_t rows = traits_->scale_rows(n_), groups = traits_->groups(k_), at = first * rows * groups;
      result.scale_group = traits_->group;
      result.scale = {TensorView(scale_.data() + at * dtype_bits(traits_->group_scales) / 8,
                                 traits_->group_scales, {count, rows, groups})};
      if (traits_->zeros())
        result.zero = {TensorView(zero_.data() + at, DType::kInt8, {count, rows, groups})};
    }
    if (traits_->channel_scales()) {
      result.scale = {TensorView(scale_.data() + first * n_ * 8, DType::kUInt64, {count, n_})};
    }
    return result;
  }

  std::vector<std::byte>& codes() { return weight_; }
  std::vector<std::byte>& scales() { return scale_; }

 private:
  void fill_codes(int64_t count, std::mt19937& random) {
    weight_.resize(static_cast<size_t>(count * dtype_bits(traits_->weight) / 8));
    if (traits_->weight == DType::kBFloat16) {
      std::normal_distribution<float> normal(0.f, 1.f / std::sqrt(static_cast<float>(k_)));
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t bits = format::bf16_from_float(normal(random));
        std::memcpy(weight_.data() + 2 * i, &bits, sizeof bits);
      }
      return;
    }
    for (std::byte& w : weight_) w = static_cast<std::byte>(moderate_code(traits_->weight, random));
  }

  void fill_channel_scales(int64_t count, std::mt19937& random) {
    const float size = traits_->nibbles() ? 4.6f : 74.f;
    for (int64_t c = 0; c < count; ++c) {
      const float s =
          (0.5f + static_cast<float>(random() % 100) / 100.f) / (size * std::sqrt(static_cast<float>(k_)));
      uint64_t word = 0;
      std::memcpy(&word, &s, sizeof s);
      const auto* bytes = reinterpret_cast<const std::byte*>(&word);
      scale_.insert(scale_.end(), bytes, bytes + sizeof word);
    }
  }

  void fill_group_scales(int64_t count, std::mt19937& random) {
    const float size = traits_->nibbles() ? 7.f : 3.f;
    for (int64_t i = 0; i < count; ++i) {
      const float s =
          (0.5f + static_cast<float>(random() % 100) / 100.f) / (size * std::sqrt(static_cast<float>(k_)));
      uint32_t bits = 0;
      std::memcpy(&bits, &s, sizeof s);
      if (traits_->group_scales == DType::kBFloat16) bits = format::bf16_from_float(s);
      if (traits_->group_scales == DType::kFloat16) bits = format::f16_from_float(s);
      const auto* bytes = reinterpret_cast<const std::byte*>(&bits);
      scale_.insert(scale_.end(), bytes, bytes + dtype_bits(traits_->group_scales) / 8);
      if (traits_->zeros()) zero_.push_back(static_cast<int8_t>(static_cast<int>(random() % 17) - 8));
    }
  }

  // Powers of two around 1 / (size of a code * sqrt(k)).
  void fill_mx_scales(int64_t count, std::mt19937& random) {
    scale_.resize(static_cast<size_t>(count));
    const int middle = 127 - static_cast<int>(std::lround(std::log2(std::sqrt(static_cast<double>(k_)) * 3)));
    for (std::byte& s : scale_) s = static_cast<std::byte>(middle - 1 + static_cast<int>(random() % 3));
  }

  const ScenarioTraits* traits_ = nullptr;
  int64_t k_ = 0, n_ = 0;
  std::vector<std::byte> weight_, scale_;
  std::vector<int8_t> zero_;
  std::vector<float> bias_, added_bias_;
};

}  // namespace megamoe::test
