// A random layer for tests: settings, weights of all ranks, tokens of all ranks, and ways to run it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "format/bf16.h"
#include "megamoe/megamoe.h"

namespace megamoe::test {

struct LayerShape {
  int64_t hidden = 64;
  int64_t intermediate = 32;
  int64_t experts = 8;
  int64_t topk = 2;
  std::string scenario = "A16W16";
  std::string activation = "swiglu";
};

/// Tokens of one rank, with outputs filled with a pattern that no right result leaves standing.
struct RankTokens {
  int64_t tokens = 0;
  std::vector<uint16_t> x, y;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int8_t> active;  // empty = no mask
  std::vector<int32_t> counts;
};

/// How a scenario stores its weights.
struct ScenarioTraits {
  const char* name;
  int mode;
  DType out;
  DType weight;
  double bound;  ///< relative error of y against the reference

  bool mx() const {
    return weight == DType::kFloat8E4M3 || weight == DType::kFloat8E5M2 || weight == DType::kFloat4E2M1;
  }
  bool channel_scales() const { return weight == DType::kInt8 || weight == DType::kInt4; }
  bool nibbles() const { return dtype_bits(weight) == 4; }
};

inline constexpr ScenarioTraits kScenarioTraits[] = {
    {"A16W16", 0, DType::kUndefined, DType::kBFloat16, 2e-3},
    {"A8W8-INT", 2, DType::kInt8, DType::kInt8, 1e-3},
    {"A8W4-INT", 2, DType::kInt8, DType::kInt4, 1e-3},
    {"A8W8-FP", 4, DType::kFloat8E4M3, DType::kFloat8E4M3, 2e-3},
    {"A8W8-FP-E5M2", 4, DType::kFloat8E5M2, DType::kFloat8E5M2, 2e-3},
    {"A8W4-FP", 4, DType::kFloat8E4M3, DType::kFloat4E2M1, 2e-3},
    {"A4W4-FP", 4, DType::kFloat4E2M1, DType::kFloat4E2M1, 2e-3},
};

inline const ScenarioTraits& traits_of(const std::string& name) {
  for (const ScenarioTraits& traits : kScenarioTraits) {
    if (name == traits.name) return traits;
  }
  throw std::runtime_error("no scenario " + name);
}

class TestLayer {
 public:
  TestLayer(const LayerShape& shape, uint32_t seed)
      : shape_(shape), traits_(traits_of(shape.scenario)), random_(seed) {
    const int64_t n1 = 2 * shape.intermediate;
    k2_ = shape.activation == "gelu" ? n1 : shape.intermediate;
    fill(shape.hidden, n1, weight1_, scale1_);
    fill(k2_, shape.hidden, weight2_, scale2_);
  }

  const LayerShape& shape() const { return shape_; }
  const ScenarioTraits& traits() const { return traits_; }
  std::mt19937& random() { return random_; }

  BufferConfig config(int64_t max_tokens) const {
    BufferConfig config;
    config.num_experts = shape_.experts;
    config.num_max_tokens_per_rank = max_tokens;
    config.num_topk = shape_.topk;
    config.hidden = shape_.hidden;
    config.intermediate_hidden = shape_.intermediate;
    config.dispatch_quant_mode = traits_.mode;
    config.dispatch_quant_out_dtype = traits_.out;
    return config;
  }

  /// Weights of one rank as the operator stores them: (E_local, K, N).
  LinearWeights linear1(int ranks, int rank) const {
    return linear(weight1_, scale1_, shape_.hidden, 2 * shape_.intermediate, ranks, rank);
  }
  LinearWeights linear2(int ranks, int rank) const {
    return linear(weight2_, scale2_, k2_, shape_.hidden, ranks, rank);
  }
  int64_t local_experts(int ranks, int rank) const {
    const int64_t each = (shape_.experts + ranks - 1) / ranks;
    return std::max<int64_t>(0, std::min(each, shape_.experts - rank * each));
  }
  Activation activation() const {
    Activation activation;
    activation.name = shape_.activation;
    if (activation.name == "situglu") activation.beta = 1.5;
    return activation;
  }
  Layer layer(int ranks, int rank, bool packed) const {
    Layer layer;
    layer.activation = activation();
    layer.weight1 = linear1(ranks, rank);
    layer.weight2 = linear2(ranks, rank);
    if (packed && local_experts(ranks, rank) > 0) {
      layer.packed1 = PackedWeights::pack_linear1(layer.weight1, shape_.activation != "gelu", 1).value();
      layer.packed2 = PackedWeights::pack_linear2(layer.weight2, 1).value();
      layer.weight1 = layer.weight2 = {};
    }
    return layer;
  }

  /// `choose(token, slot)` gives the expert of a slot; the default is random distinct experts.
  RankTokens tokens(int64_t count, const std::function<int32_t(int64_t, int64_t)>& choose = {}) {
    RankTokens rank;
    rank.tokens = count;
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count * shape_.hidden; ++i)
      rank.x.push_back(format::bf16_from_float(normal(random_)));
    std::vector<int32_t> experts(static_cast<size_t>(shape_.experts));
    for (size_t e = 0; e < experts.size(); ++e) experts[e] = static_cast<int32_t>(e);
    for (int64_t t = 0; t < count; ++t) {
      std::shuffle(experts.begin(), experts.end(), random_);
      for (int64_t k = 0; k < shape_.topk; ++k) {
        rank.ids.push_back(choose ? choose(t, k) : experts[static_cast<size_t>(k % shape_.experts)]);
        rank.weights.push_back(0.1f + 0.9f * static_cast<float>(random_() % 1000) / 1000.f);
      }
    }
    poison(rank);
    return rank;
  }

  /// Outputs as they are before a call: NaN and -77.
  void poison(RankTokens& rank) const {
    rank.y.assign(static_cast<size_t>(rank.tokens * shape_.hidden), uint16_t{0x7fff});
    rank.counts.assign(static_cast<size_t>(shape_.experts), -77);
  }

  CallArgs args(RankTokens& rank, int64_t local_experts) const {
    CallArgs args;
    args.x = {rank.x.data(), DType::kBFloat16, {rank.tokens, shape_.hidden}};
    args.topk_ids = {rank.ids.data(), DType::kInt32, {rank.tokens, shape_.topk}};
    args.topk_weights = {rank.weights.data(), DType::kFloat32, {rank.tokens, shape_.topk}};
    if (!rank.active.empty()) args.x_active_mask = {rank.active.data(), DType::kInt8, {rank.tokens}};
    args.y = {rank.y.data(), DType::kBFloat16, {rank.tokens, shape_.hidden}};
    args.expert_token_nums = {rank.counts.data(), DType::kInt32, {local_experts}};
    return args;
  }

  /// The reference over all ranks; returns y of every rank.
  std::vector<RankTokens> reference(std::vector<RankTokens> ranks, int64_t max_tokens) const {
    std::vector<reference::RankInput> inputs;
    const int size = static_cast<int>(ranks.size());
    for (int r = 0; r < size; ++r) {
      poison(ranks[static_cast<size_t>(r)]);
      inputs.push_back(
          {args(ranks[static_cast<size_t>(r)], local_experts(size, r)), linear1(size, r), linear2(size, r)});
    }
    const Status status = reference::mega_moe(config(max_tokens), activation(), inputs);
    if (!status.is_ok()) throw std::runtime_error("reference: " + status.message());
    return ranks;
  }

 private:
  // One linear layer of all experts, K x N: (E, K, N), or (E, N, K) with MX codes.
  void fill(int64_t k, int64_t n, std::vector<std::byte>& weight, std::vector<std::byte>& scale) {
    const int64_t count = shape_.experts * k * n;
    weight.resize(static_cast<size_t>(count * dtype_bits(traits_.weight) / 8));
    if (traits_.weight == DType::kBFloat16) {
      std::normal_distribution<float> normal(0.f, 1.f / std::sqrt(static_cast<float>(k)));
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t bits = format::bf16_from_float(normal(random_));
        std::memcpy(weight.data() + 2 * i, &bits, sizeof bits);
      }
      return;
    }
    for (std::byte& w : weight) w = static_cast<std::byte>(random_code());
    if (traits_.channel_scales()) {
      const float size = traits_.nibbles() ? 4.6f : 74.f;
      for (int64_t c = 0; c < shape_.experts * n; ++c) {
        const float s =
            (0.5f + static_cast<float>(random_() % 100) / 100.f) / (size * std::sqrt(static_cast<float>(k)));
        uint64_t word = 0;
        std::memcpy(&word, &s, sizeof s);
        const auto* bytes = reinterpret_cast<const std::byte*>(&word);
        scale.insert(scale.end(), bytes, bytes + sizeof word);
      }
      return;
    }
    scale.resize(static_cast<size_t>(shape_.experts * n * ((k + 63) / 64) * 2));
    // Powers of two around 1 / (size of a code * sqrt(k)).
    const int middle = 127 - static_cast<int>(std::lround(std::log2(std::sqrt(static_cast<double>(k)) * 3)));
    for (std::byte& s : scale) s = static_cast<std::byte>(middle - 1 + static_cast<int>(random_() % 3));
  }

  // A byte of codes of moderate size: MXFP8 codes of magnitude 0.25 to 8, all int8, all pairs of nibbles.
  int random_code() {
    const int any = static_cast<int>(random_() % 256);
    if (traits_.weight == DType::kFloat8E4M3)
      return (any & 0x87) | (5 + static_cast<int>(random_() % 5)) << 3;
    if (traits_.weight == DType::kFloat8E5M2)
      return (any & 0x83) | (13 + static_cast<int>(random_() % 5)) << 2;
    return any;
  }

  LinearWeights linear(const std::vector<std::byte>& weight, const std::vector<std::byte>& scale, int64_t k,
                       int64_t n, int ranks, int rank) const {
    const int64_t each = (shape_.experts + ranks - 1) / ranks;
    const int64_t local = local_experts(ranks, rank);
    LinearWeights result;
    if (local == 0) return result;
    const std::byte* start = weight.data() + rank * each * k * n * dtype_bits(traits_.weight) / 8;
    if (traits_.mx()) {
      const int64_t groups = (k + 63) / 64;
      result.k_last = true;
      result.weight.push_back(TensorView(start, traits_.weight, {local, n, k}));
      result.scale.push_back(
          TensorView(scale.data() + rank * each * n * groups * 2, DType::kFloat8E8M0, {local, n, groups, 2}));
      return result;
    }
    result.weight.push_back(TensorView(start, traits_.weight, {local, k, n}));
    if (traits_.channel_scales()) {
      result.scale.push_back(TensorView(scale.data() + rank * each * n * 8, DType::kUInt64, {local, n}));
    }
    return result;
  }

  LayerShape shape_;
  const ScenarioTraits& traits_;
  std::mt19937 random_;
  std::vector<std::byte> weight1_, weight2_;
  std::vector<std::byte> scale1_, scale2_;
  int64_t k2_ = 0;
};

/// Runs body(rank, group) on one thread per rank of a local group.
inline void on_local_ranks(int ranks, const std::function<void(int, const Group&)>& body) {
  std::vector<Group> groups = Group::local(ranks).value();
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { body(r, groups[static_cast<size_t>(r)]); });
  for (std::thread& thread : threads) thread.join();
}

inline BufferOptions options(int threads, std::optional<Isa> isa = {}) {
  BufferOptions options;
  options.threads = threads;
  options.isa = isa;
  return options;
}

/// |got - want| / |want| over all values, in the Frobenius norm.
inline double relative_error(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = format::bf16_to_float(want[i]);
    const double d = format::bf16_to_float(got[i]) - w;
    difference += d * d;
    norm += w * w;
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// Every level this machine can run.
inline std::vector<Isa> runnable_levels() {
  std::vector<Isa> levels;
  for (const IsaInfo& info : isa_levels()) {
    if (info.runnable) levels.push_back(info.isa);
  }
  return levels;
}

}  // namespace megamoe::test
