// A small problem over any number of ranks, with memory of its own and random values.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "format/bf16.h"
#include "megamoe/reference.h"

namespace megamoe::reference {

inline constexpr uint16_t kPoison = 0x7fc1;  // a bfloat16 NaN that no computation makes

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float v : values) bits.push_back(format::bf16_from_float(v));
  return bits;
}

inline std::vector<float> to_float(const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (uint16_t b : bits) values.push_back(format::bf16_to_float(b));
  return values;
}

/// Tokens of one rank and what comes back.
struct RankData {
  int64_t tokens = 0;
  std::vector<uint16_t> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int8_t> mask;  ///< empty = none
  std::vector<uint16_t> y;
  std::vector<int32_t> counts;
};

/// Sizes, weights of all experts (E, K, N) and the tokens of each rank. Change any of it before run().
struct World {
  int64_t experts = 0;
  int64_t topk = 0;
  int64_t hidden = 0;
  int64_t width = 0;  ///< I
  bool int8 = false;
  Activation activation;
  BufferConfig config;
  std::vector<RankData> ranks;
  std::vector<uint16_t> bf16_weight1, bf16_weight2;
  std::vector<int8_t> int8_weight1, int8_weight2;
  std::vector<float> scale1, scale2;
  std::vector<Stages> stages;

  /// Random values; `tokens` per rank.
  World(bool is_int8, std::vector<int64_t> tokens, int64_t num_experts, int64_t num_topk, int64_t h,
        int64_t i)
      : experts(num_experts), topk(num_topk), hidden(h), width(i), int8(is_int8) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto reals = [&](int64_t n) {
      std::vector<float> values(static_cast<size_t>(n));
      for (float& v : values) v = normal(random);
      return values;
    };
    const auto codes = [&](int64_t n) {
      std::vector<int8_t> values(static_cast<size_t>(n));
      for (int8_t& v : values) v = static_cast<int8_t>(static_cast<int>(random() % 256) - 128);
      return values;
    };
    config.num_experts = experts;
    config.num_topk = topk;
    config.hidden = hidden;
    config.intermediate_hidden = width;
    config.dispatch_quant_mode = int8 ? 2 : 0;
    if (int8) {
      int8_weight1 = codes(experts * hidden * 2 * width);
      int8_weight2 = codes(experts * width * hidden);
      for (int64_t n = 0; n < experts * 2 * width; ++n)
        scale1.push_back(0.01f + 0.001f * static_cast<float>(n % 7));
      for (int64_t n = 0; n < experts * hidden; ++n)
        scale2.push_back(0.02f + 0.001f * static_cast<float>(n % 5));
    } else {
      bf16_weight1 = to_bf16(reals(experts * hidden * 2 * width));
      bf16_weight2 = to_bf16(reals(experts * width * hidden));
    }
    for (int64_t t : tokens) {
      RankData rank;
      rank.tokens = t;
      rank.x = to_bf16(reals(t * hidden));
      rank.weights = reals(t * topk);
      for (int64_t f = 0; f < t * topk; ++f) {
        const int64_t start = static_cast<int64_t>(random() % static_cast<uint32_t>(experts));
        rank.ids.push_back(static_cast<int32_t>(f % topk == 0 ? start : (rank.ids.back() + 1) % experts));
      }
      ranks.push_back(rank);
      config.num_max_tokens_per_rank = std::max(config.num_max_tokens_per_rank, t);
    }
  }

  int64_t local_experts() const { return experts / static_cast<int64_t>(ranks.size()); }

  /// Views of everything, outputs filled with values that no computation makes.
  std::vector<RankInput> inputs() {
    std::vector<RankInput> list;
    for (size_t r = 0; r < ranks.size(); ++r) {
      RankData& rank = ranks[r];
      rank.y.assign(rank.x.size(), kPoison);
      rank.counts.assign(static_cast<size_t>(local_experts()), -7);
      RankInput in;
      in.call.x = TensorView(rank.x.data(), DType::kBFloat16, {rank.tokens, hidden});
      in.call.topk_ids = TensorView(rank.ids.data(), DType::kInt32, {rank.tokens, topk});
      in.call.topk_weights = TensorView(rank.weights.data(), DType::kFloat32, {rank.tokens, topk});
      if (!rank.mask.empty())
        in.call.x_active_mask = TensorView(rank.mask.data(), DType::kInt8, {rank.tokens});
      in.call.y = TensorRef(rank.y.data(), DType::kBFloat16, {rank.tokens, hidden});
      in.call.expert_token_nums = TensorRef(rank.counts.data(), DType::kInt32, {local_experts()});
      const int64_t first = static_cast<int64_t>(r) * local_experts();
      const int64_t activated = activation.name == "gelu" ? 2 * width : width;
      in.weight1.weight = {weight(int8_weight1, bf16_weight1, first, hidden, 2 * width)};
      in.weight2.weight = {weight(int8_weight2, bf16_weight2, first, activated, hidden)};
      if (int8) {
        in.weight1.scale = {
            TensorView(scale1.data() + first * 2 * width, DType::kFloat32, {local_experts(), 2 * width})};
        in.weight2.scale = {
            TensorView(scale2.data() + first * hidden, DType::kFloat32, {local_experts(), hidden})};
      }
      list.push_back(in);
    }
    return list;
  }

  Status run() {
    std::vector<RankInput> list = inputs();
    return mega_moe(config, activation, list, &stages);
  }

  /// Whether the last call left all outputs as inputs() filled them.
  bool untouched() const {
    for (const RankData& rank : ranks) {
      for (uint16_t v : rank.y) {
        if (v != kPoison) return false;
      }
      for (int32_t v : rank.counts) {
        if (v != -7) return false;
      }
    }
    return true;
  }

 private:
  TensorView weight(const std::vector<int8_t>& codes, const std::vector<uint16_t>& reals, int64_t first,
                    int64_t k, int64_t n) const {
    return int8 ? TensorView(codes.data() + first * k * n, DType::kInt8, {local_experts(), k, n})
                : TensorView(reals.data() + first * k * n, DType::kBFloat16, {local_experts(), k, n});
  }
};

}  // namespace megamoe::reference
