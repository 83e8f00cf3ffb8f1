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
#include "format/float16.h"
#include "megamoe/megamoe.h"
#include "support/weights.h"

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
  std::vector<std::byte> codes;  // of x where it comes as codes, and their scales
  std::vector<uint8_t> scales;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int8_t> active;  // empty = no mask
  std::vector<int32_t> counts;
};

/// What a test chooses beside the shape; the defaults are those of the operator.
struct LayerOptions {
  DType x = DType::kBFloat16;  ///< bfloat16 or float16
  DType y = DType::kBFloat16;
  bool coded_x = false;      ///< x comes as the scenario's codes, with scales
  bool biases = false;       ///< of all layers
  bool compensation = true;  ///< biases of int4 with a scale per channel are of both kinds
  int64_t interleave = 0;    ///< of gate and up columns
  int64_t shared_experts = 0;
  std::string shared_scenario;  ///< empty: as the layer
  int topk_weights_type = 0;
  int combine_quant_mode = 0;
  int combine_comm_mode = 0;
  int topo_type = 0;
  int rank_num_per_server = 2;
  int64_t max_recv_token_num = 0;
};

class TestLayer {
 public:
  TestLayer(const LayerShape& shape, uint32_t seed, const LayerOptions& options = {})
      : shape_(shape), options_(options), traits_(traits_of(shape.scenario)), random_(seed) {
    const int64_t n1 = 2 * shape.intermediate;
    const int64_t k2 = gated() ? shape.intermediate : n1;
    weight1_ = ScenarioWeights(traits_, shape.experts, shape.hidden, n1, options.biases, random_);
    weight2_ = ScenarioWeights(traits_, shape.experts, k2, shape.hidden, options.biases, random_);
    if (options.shared_experts == 0) return;
    const ScenarioTraits& shared = shared_traits();
    shared1_ = ScenarioWeights(shared, options.shared_experts, shape.hidden, n1, options.biases, random_);
    shared2_ = ScenarioWeights(shared, options.shared_experts, k2, shape.hidden, options.biases, random_);
  }

  const LayerShape& shape() const { return shape_; }
  const LayerOptions& options() const { return options_; }
  const ScenarioTraits& traits() const { return traits_; }
  std::mt19937& random() { return random_; }

  BufferConfig config(int64_t max_tokens) const {
    BufferConfig config;
    config.num_experts = shape_.experts;
    config.num_max_tokens_per_rank = max_tokens;
    config.num_topk = shape_.topk;
    config.hidden = shape_.hidden;
    config.intermediate_hidden = shape_.intermediate;
    config.dispatch_quant_mode = options_.coded_x ? 0 : traits_.mode;
    config.dispatch_quant_out_dtype = traits_.out;
    config.topk_weights_type = options_.topk_weights_type;
    config.combine_quant_mode = options_.combine_quant_mode;
    config.combine_comm_mode = options_.combine_comm_mode;
    config.topo_type = options_.topo_type;
    config.rank_num_per_server = options_.rank_num_per_server;
    config.max_recv_token_num = options_.max_recv_token_num;
    return config;
  }

  /// Weights of one rank as the operator stores them: (E_local, K, N).
  LinearWeights linear1(int ranks, int rank) const {
    return in_turn(chosen(weight1_.view(rank * experts_per_rank(ranks), local_experts(ranks, rank))));
  }
  LinearWeights linear2(int ranks, int rank) const {
    return chosen(weight2_.view(rank * experts_per_rank(ranks), local_experts(ranks, rank)));
  }
  /// Codes and scales of layer 1 or 2, of all experts, to change them.
  std::vector<std::byte>& codes(int layer) { return layer == 1 ? weight1_.codes() : weight2_.codes(); }
  std::vector<std::byte>& scales(int layer) { return layer == 1 ? weight1_.scales() : weight2_.scales(); }
  /// The shared experts are the same on every rank.
  LinearWeights shared1() const { return in_turn(chosen(shared1_.view(0, options_.shared_experts))); }
  LinearWeights shared2() const { return chosen(shared2_.view(0, options_.shared_experts)); }
  DType shared_out() const {
    if (options_.shared_experts == 0 || options_.shared_scenario.empty()) return DType::kUndefined;
    return shared_traits().out == DType::kUndefined ? DType::kBFloat16 : shared_traits().out;
  }
  bool gated() const { return shape_.activation != "gelu"; }
  int64_t local_experts(int ranks, int rank) const {
    const int64_t each = experts_per_rank(ranks);
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
    layer.shared_weight1 = shared1();
    layer.shared_weight2 = shared2();
    layer.shared_expert_quant_out_dtype = shared_out();
    if (!packed) return layer;
    if (local_experts(ranks, rank) > 0) {
      layer.packed1 = PackedWeights::pack_linear1(layer.weight1, gated(), 1).value();
      layer.packed2 = PackedWeights::pack_linear2(layer.weight2, 1).value();
      layer.weight1 = layer.weight2 = {};
    }
    if (options_.shared_experts > 0) {
      layer.shared_packed1 = PackedWeights::pack_linear1(layer.shared_weight1, gated(), 1).value();
      layer.shared_packed2 = PackedWeights::pack_linear2(layer.shared_weight2, 1).value();
      layer.shared_weight1 = layer.shared_weight2 = {};
    }
    return layer;
  }

  /// `choose(token, slot)` gives the expert of a slot; the default is random distinct experts.
  RankTokens tokens(int64_t count, const std::function<int32_t(int64_t, int64_t)>& choose = {}) {
    RankTokens rank;
    rank.tokens = count;
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count * shape_.hidden; ++i) {
      const float value = normal(random_);
      rank.x.push_back(options_.x == DType::kFloat16 ? format::f16_from_float(value)
                                                     : format::bf16_from_float(value));
    }
    for (int64_t i = 0; options_.coded_x && i < count * code_bytes(); ++i)
      rank.codes.push_back(static_cast<std::byte>(moderate_code(traits_.out, random_)));
    for (int64_t i = 0; options_.coded_x && i < count * groups(); ++i)
      rank.scales.push_back(static_cast<uint8_t>(124 + random_() % 3));
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
    args.x = {rank.x.data(), options_.x, {rank.tokens, shape_.hidden}};
    if (options_.coded_x) {
      args.x = {rank.codes.data(), traits_.out, {rank.tokens, shape_.hidden}};
      args.scales = {rank.scales.data(), DType::kFloat8E8M0, {rank.tokens, groups()}};
    }
    args.topk_ids = {rank.ids.data(), DType::kInt32, {rank.tokens, shape_.topk}};
    args.topk_weights = {rank.weights.data(), DType::kFloat32, {rank.tokens, shape_.topk}};
    if (!rank.active.empty()) args.x_active_mask = {rank.active.data(), DType::kInt8, {rank.tokens}};
    args.y = {rank.y.data(), options_.y, {rank.tokens, shape_.hidden}};
    args.expert_token_nums = {rank.counts.data(), DType::kInt32, {local_experts}};
    return args;
  }

  /// The reference over all ranks; returns y of every rank.
  std::vector<RankTokens> reference(std::vector<RankTokens> ranks, int64_t max_tokens) const {
    std::vector<reference::RankInput> inputs;
    const int size = static_cast<int>(ranks.size());
    for (int r = 0; r < size; ++r) {
      poison(ranks[static_cast<size_t>(r)]);
      inputs.push_back({args(ranks[static_cast<size_t>(r)], local_experts(size, r)), linear1(size, r),
                        linear2(size, r), shared1(), shared2(), shared_out()});
    }
    const Status status = reference::mega_moe(config(max_tokens), activation(), inputs);
    if (!status.is_ok()) throw std::runtime_error("reference: " + status.message());
    return ranks;
  }

 private:
  int64_t experts_per_rank(int ranks) const { return (shape_.experts + ranks - 1) / ranks; }
  LinearWeights chosen(LinearWeights weights) const {
    if (!weights.added_bias.empty() && !options_.compensation) weights.bias.clear();
    return weights;
  }
  LinearWeights in_turn(LinearWeights weights) const {
    weights.interleave = options_.interleave;
    return weights;
  }
  int64_t code_bytes() const { return shape_.hidden * dtype_bits(traits_.out) / 8; }
  int64_t groups() const { return (shape_.hidden + 31) / 32; }
  const ScenarioTraits& shared_traits() const {
    return options_.shared_scenario.empty() ? traits_ : traits_of(options_.shared_scenario);
  }

  LayerShape shape_;
  LayerOptions options_;
  const ScenarioTraits& traits_;
  std::mt19937 random_;
  ScenarioWeights weight1_, weight2_, shared1_, shared2_;
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
inline double relative_error(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want,
                             DType type = DType::kBFloat16) {
  const auto value = type == DType::kFloat16 ? format::f16_to_float : format::bf16_to_float;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double w = value(want[i]);
    const double d = value(got[i]) - w;
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
