// A small problem in any scenario, with memory of its own and random codes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "format/bf16.h"
#include "format/fractal.h"
#include "megamoe/reference.h"

namespace megamoe::reference {

/// What a scenario is made of, as the callers of the operator name it.
struct ScenarioTypes {
  const char* name;
  DType token;
  DType weight;
  int mode;
};
inline void PrintTo(const ScenarioTypes& types, std::ostream* out) {
  *out << types.name;
}

inline constexpr ScenarioTypes kA16W16{"A16W16", DType::kBFloat16, DType::kBFloat16, 0};
inline constexpr ScenarioTypes kA8W8Int{"A8W8Int", DType::kInt8, DType::kInt8, 2};
inline constexpr ScenarioTypes kA8W4Int{"A8W4Int", DType::kInt8, DType::kInt4, 2};
inline constexpr ScenarioTypes kA8W8E5M2{"A8W8E5M2", DType::kFloat8E5M2, DType::kFloat8E5M2, 4};
inline constexpr ScenarioTypes kA8W8E4M3{"A8W8E4M3", DType::kFloat8E4M3, DType::kFloat8E4M3, 4};
inline constexpr ScenarioTypes kA16W4Fp{"A16W4Fp", DType::kBFloat16, DType::kFloat4E2M1, 0};
inline constexpr ScenarioTypes kA8W4Fp{"A8W4Fp", DType::kFloat8E4M3, DType::kFloat4E2M1, 4};
inline constexpr ScenarioTypes kA4W4Fp{"A4W4Fp", DType::kFloat4E2M1, DType::kFloat4E2M1, 4};
inline constexpr ScenarioTypes kAllScenarios[] = {kA16W16,   kA8W8Int, kA8W4Int, kA8W8E5M2,
                                                  kA8W8E4M3, kA16W4Fp, kA8W4Fp,  kA4W4Fp};

/// Raw bits of element `at` of a tensor.
inline uint64_t get_bits(const void* data, DType dtype, int64_t at) {
  const int bits = dtype_bits(dtype);
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (bits == 4) return at % 2 == 0 ? bytes[at / 2] & 0xfu : bytes[at / 2] >> 4;
  uint64_t value = 0;
  std::memcpy(&value, bytes + at * bits / 8, static_cast<size_t>(bits / 8));
  return value;
}
inline void put_bits(void* data, DType dtype, int64_t at, uint64_t value) {
  const int bits = dtype_bits(dtype);
  auto* bytes = static_cast<uint8_t*>(data);
  if (bits != 4) {
    std::memcpy(bytes + at * bits / 8, &value, static_cast<size_t>(bits / 8));
    return;
  }
  uint8_t& pair = bytes[at / 2];
  pair = static_cast<uint8_t>(at % 2 == 0 ? (pair & 0xf0u) | value : (pair & 0x0fu) | value << 4);
}

/// A tensor with its memory.
struct Storage {
  std::shared_ptr<std::vector<std::byte>> bytes;
  TensorRef ref;

  TensorView view() const { return megamoe::view(ref); }
  /// Entries [first, first + count) of the first dimension.
  TensorView part(int64_t first, int64_t count) const {
    TensorView view = this->view();
    view.data = bytes->data() + first * ref.strides[0] * dtype_bits(ref.dtype) / 8;
    view.shape[0] = count;
    return view;
  }
};

inline Storage make_storage(DType dtype, std::initializer_list<int64_t> shape, int64_t elements = -1) {
  Storage storage;
  storage.ref = TensorRef(nullptr, dtype, shape);
  if (elements < 0) elements = storage.ref.elements();
  storage.bytes = std::make_shared<std::vector<std::byte>>(
      static_cast<size_t>((elements * dtype_bits(dtype) + 7) / 8), std::byte{0x77});
  storage.ref.data = storage.bytes->data();
  return storage;
}

/// The weights of one layer of all experts.
struct LayerData {
  Storage weight, scale, bias;  ///< the last two may be empty
  bool k_last = false;
  int64_t interleave = 0;

  LinearWeights part(int64_t first, int64_t count) const {
    LinearWeights weights;
    weights.weight = {weight.part(first, count)};
    if (scale.bytes) weights.scale = {scale.part(first, count)};
    if (bias.bytes) weights.bias = {bias.part(first, count)};
    weights.k_last = k_last;
    weights.interleave = interleave;
    return weights;
  }
};

/// Tokens of one rank and what comes back.
struct TokenData {
  int64_t tokens = 0;
  Storage x, scales, ids, weights, mask, y, counts;
};

struct ScenarioWorld {
  ScenarioTypes types;
  int64_t experts, topk, hidden, width;
  Activation activation;
  BufferConfig config;
  LayerData layer1, layer2, shared1, shared2;
  DType shared_type = DType::kUndefined;
  std::vector<TokenData> ranks;
  std::vector<Stages> stages;
  std::mt19937 random{11};

  ScenarioWorld(const ScenarioTypes& scenario, const std::vector<int64_t>& tokens, int64_t num_experts,
                int64_t num_topk, int64_t h = 72, int64_t i = 40)
      : types(scenario), experts(num_experts), topk(num_topk), hidden(h), width(i) {
    config.num_experts = experts;
    config.num_topk = topk;
    config.hidden = hidden;
    config.intermediate_hidden = width;
    config.dispatch_quant_mode = types.mode;
    if (types.mode != 0) config.dispatch_quant_out_dtype = types.token;
    layer1 = random_layer(types.weight, experts, hidden, 2 * width);
    layer2 = random_layer(types.weight, experts, width, hidden);
    for (int64_t count : tokens) {
      TokenData rank;
      rank.tokens = count;
      rank.x = make_storage(DType::kBFloat16, {count, hidden});
      std::normal_distribution<float> normal;
      for (int64_t e = 0; e < count * hidden; ++e) {
        put_bits(rank.x.ref.data, DType::kBFloat16, e, format::bf16_from_float(normal(random)));
      }
      rank.ids = make_storage(DType::kInt32, {count, topk});
      rank.weights = make_storage(DType::kFloat32, {count, topk});
      for (int64_t f = 0; f < count * topk; ++f) {
        ids(rank)[f] = static_cast<int32_t>(random() % static_cast<uint32_t>(experts));
        weights(rank)[f] = 0.1f + 0.01f * static_cast<float>(random() % 97);
      }
      rank.y = make_storage(DType::kBFloat16, {count, hidden});
      ranks.push_back(rank);
      config.num_max_tokens_per_rank = std::max(config.num_max_tokens_per_rank, count);
    }
  }

  static int32_t* ids(TokenData& rank) { return static_cast<int32_t*>(rank.ids.ref.data); }
  static float* weights(TokenData& rank) { return static_cast<float*>(rank.weights.ref.data); }

  int64_t experts_per_rank() const {
    const int64_t size = static_cast<int64_t>(ranks.size());
    return (experts + size - 1) / size;
  }
  int64_t local_experts(size_t rank) const {
    return std::clamp<int64_t>(experts - static_cast<int64_t>(rank) * experts_per_rank(), 0,
                               experts_per_rank());
  }

  static bool is_mx(DType weight) {
    return weight == DType::kFloat8E4M3 || weight == DType::kFloat8E5M2 || weight == DType::kFloat4E2M1;
  }

  /// Weights as the operator document has them: (E, N, K) in the MX types, else (E, K, N).
  LayerData random_layer(DType weight, int64_t count, int64_t k, int64_t n) {
    LayerData layer;
    layer.k_last = is_mx(weight);
    layer.weight = layer.k_last ? make_storage(weight, {count, n, k}) : make_storage(weight, {count, k, n});
    std::normal_distribution<float> normal;
    for (int64_t e = 0; e < count * k * n; ++e) {
      uint64_t code = random() & ((1u << std::min(dtype_bits(weight), 16)) - 1);
      if (weight == DType::kBFloat16) code = format::bf16_from_float(0.1f * normal(random));
      // Eight-bit floats of moderate size, so that one weight does not outweigh all others.
      if (weight == DType::kFloat8E4M3) code = (code & 0x87u) | (5u + (code >> 3) % 4) << 3;
      if (weight == DType::kFloat8E5M2) code = (code & 0x83u) | (13u + (code >> 2) % 4) << 2;
      put_bits(layer.weight.ref.data, weight, e, code);
    }
    if (layer.k_last) {
      const int64_t pairs = (k + 63) / 64;
      layer.scale = make_storage(DType::kFloat8E8M0, {count, n, pairs, 2});
      for (int64_t e = 0; e < count * n * pairs * 2; ++e) {
        put_bits(layer.scale.ref.data, DType::kFloat8E8M0, e, 123 + random() % 4);
      }
      // The second scale of a pair that covers no element is never read.
      if ((k + 31) / 32 % 2 != 0) {
        for (int64_t row = 1; row <= count * n; ++row) {
          put_bits(layer.scale.ref.data, DType::kFloat8E8M0, row * pairs * 2 - 1, 255);
        }
      }
    } else if (weight != DType::kBFloat16) {
      layer.scale = make_storage(DType::kFloat32, {count, n});
      const float unit = weight == DType::kInt8 ? 0.001f : 0.02f;
      for (int64_t e = 0; e < count * n; ++e) {
        static_cast<float*>(layer.scale.ref.data)[e] = unit * (1 + 0.1f * static_cast<float>(random() % 9));
      }
    }
    return layer;
  }

  static Storage make_bias(int64_t count, int64_t n, std::mt19937& random) {
    Storage bias = make_storage(DType::kFloat32, {count, n});
    std::normal_distribution<float> normal;
    for (int64_t e = 0; e < count * n; ++e) static_cast<float*>(bias.ref.data)[e] = normal(random);
    return bias;
  }

  std::vector<RankInput> inputs() {
    std::vector<RankInput> list;
    for (size_t r = 0; r < ranks.size(); ++r) {
      TokenData& rank = ranks[r];
      for (int64_t e = 0; e < rank.tokens * hidden; ++e)
        put_bits(rank.y.ref.data, DType::kBFloat16, e, 0x7fc1);
      rank.counts = make_storage(DType::kInt32, {local_experts(r)});
      RankInput in;
      in.call.x = rank.x.view();
      if (rank.scales.bytes) in.call.scales = rank.scales.view();
      in.call.topk_ids = rank.ids.view();
      in.call.topk_weights = rank.weights.view();
      if (rank.mask.bytes) in.call.x_active_mask = rank.mask.view();
      in.call.y = rank.y.ref;
      in.call.expert_token_nums = rank.counts.ref;
      if (local_experts(r) > 0) {
        const int64_t first = static_cast<int64_t>(r) * experts_per_rank();
        in.weight1 = layer1.part(first, local_experts(r));
        in.weight2 = layer2.part(first, local_experts(r));
      }
      if (shared1.weight.bytes) {
        in.shared_weight1 = shared1.part(0, shared1.weight.ref.shape[0]);
        in.shared_weight2 = shared2.part(0, shared2.weight.ref.shape[0]);
        in.shared_expert_quant_out_dtype = shared_type;
      }
      list.push_back(in);
    }
    return list;
  }

  Status run() {
    std::vector<RankInput> list = inputs();
    return mega_moe(config, activation, list, &stages);
  }

  /// y of all ranks one after the other.
  std::vector<float> y() const {
    std::vector<float> values;
    for (const TokenData& rank : ranks) {
      for (int64_t e = 0; e < rank.tokens * hidden; ++e) {
        values.push_back(
            format::bf16_to_float(static_cast<uint16_t>(get_bits(rank.y.ref.data, DType::kBFloat16, e))));
      }
    }
    return values;
  }
  std::vector<int32_t> counts() const {
    std::vector<int32_t> values;
    for (const TokenData& rank : ranks) {
      const auto* counted = static_cast<const int32_t*>(rank.counts.ref.data);
      values.insert(values.end(), counted, counted + rank.counts.ref.shape[0]);
    }
    return values;
  }

  /// Linear2 row of a slot, from the stages of the last run.
  std::vector<float> expert_row(int64_t rank, int64_t token, int64_t slot) const {
    for (const Stages& s : stages) {
      for (size_t row = 0; row < s.home.size() / 3; ++row) {
        if (s.home[3 * row] != rank || s.home[3 * row + 1] != token || s.home[3 * row + 2] != slot) continue;
        const auto begin = s.linear2.begin() + static_cast<int64_t>(row) * hidden;
        return {begin, begin + hidden};
      }
    }
    return {};
  }
};

}  // namespace megamoe::reference
