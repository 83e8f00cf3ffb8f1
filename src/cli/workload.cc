// Layers and tokens to run: made up from a shape, or read from a checkpoint.
#include "cli/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "cli/small_values.h"
#include "format/bf16.h"
#include "megamoe/routing.h"

namespace megamoe::cli {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 24;

/// Numbers between separators; empty when anything else stands there.
std::vector<int64_t> numbers(const std::string& text, char separator) {
  std::vector<int64_t> result;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > kLargestSize) return {};
    result.push_back(value);
    if (next == end) return result;
    if (*next != separator) return {};
    at = next + 1;
  }
}

/// Random bfloat16 values of about the given size, quickly: sums of bytes are near enough to normal.
class Values {
 public:
  explicit Values(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint16_t next(float size) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    int sum = 0;
    for (int i = 0; i < 6; ++i) sum += static_cast<int>(state_ >> (8 * i) & 0xff);
    return format::bf16_from_float(static_cast<float>(sum - 765) * (size / 181.0f));
  }

 private:
  uint64_t state_;
};

}  // namespace

Result<Shape> parse_shape(const std::string& text) {
  const std::vector<int64_t> sizes = numbers(text, 'x');
  if (sizes.size() != 4) {
    return Status(Code::kInvalidArgument,
                  "--shape = " + text + ": expected HIDDENxINTERMEDIATExEXPERTSxTOPK such as 2048x768x128x8");
  }
  const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3]};
  if (shape.topk > shape.experts) {
    return Status(Code::kInvalidArgument, "--shape = " + text + ": expected a top-k of at most the experts");
  }
  return shape;
}

Result<std::vector<int64_t>> parse_counts(const std::string& text, const char* name) {
  std::vector<int64_t> counts = numbers(text, ',');
  if (counts.empty()) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " = " + text + ": expected numbers from 1 such as 1,4,16");
  }
  return counts;
}

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  size_t begin = 0;
  for (size_t comma; (comma = text.find(',', begin)) != std::string::npos; begin = comma + 1) {
    names.push_back(text.substr(begin, comma - begin));
  }
  names.push_back(text.substr(begin));
  return names;
}

Tokens::Tokens(const Shape& shape, int64_t tokens, int routings)
    : shape_(shape),
      tokens_(tokens),
      routings_(routings),
      x_(static_cast<size_t>(tokens * shape.hidden)),
      ids_(static_cast<size_t>(tokens * shape.topk * routings)),
      weights_(static_cast<size_t>(tokens * shape.topk)) {}

void Tokens::random_states(uint64_t seed) {
  Values values(seed);
  for (uint16_t& x : x_) x = values.next(1.0f);
}

Result<Tokens> Tokens::random(const Shape& shape, int64_t tokens, const std::string& routing, uint64_t seed,
                              int routings) {
  std::vector<double> chances(static_cast<size_t>(shape.experts), 1.0);
  if (routing == "zipf") {
    for (size_t e = 0; e < chances.size(); ++e) chances[e] = 1.0 / static_cast<double>(e + 1);
  } else if (routing == "one") {
    std::fill(chances.begin() + shape.topk, chances.end(), 0.0);
  } else if (routing != "uniform") {
    return Status(Code::kInvalidArgument, "--routing = " + routing + ": expected uniform, zipf or one");
  }
  Tokens result(shape, tokens, routings);
  result.random_states(seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(1e-12, 1.0);
  std::vector<std::pair<double, int32_t>> keys(chances.size());
  for (int64_t t = 0; t < tokens * routings; ++t) {
    // The k smallest exponential keys are a draw without replacement by these chances.
    for (size_t e = 0; e < chances.size(); ++e) {
      const double key = chances[e] > 0 ? -std::log(uniform(random)) / chances[e] : INFINITY;
      keys[e] = {key, static_cast<int32_t>(e)};
    }
    std::partial_sort(keys.begin(), keys.begin() + shape.topk, keys.end());
    for (int64_t k = 0; k < shape.topk; ++k) {
      result.ids_[static_cast<size_t>(t * shape.topk + k)] = keys[static_cast<size_t>(k)].second;
    }
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const auto row = result.weights_.begin() + t * shape.topk;
    double sum = 0;
    for (int64_t k = 0; k < shape.topk; ++k) sum += row[k] = static_cast<float>(uniform(random) + 0.1);
    for (int64_t k = 0; k < shape.topk; ++k) row[k] = static_cast<float>(row[k] / sum);
  }
  return result;
}

Result<Tokens> Tokens::routed(const Shape& shape, int64_t tokens, const checkpoint::MoeLayer& layer,
                              const checkpoint::RoutingConfig& routing, uint64_t seed) {
  const auto* const router = static_cast<const float*>(layer.router.data);
  const auto* const bias = static_cast<const float*>(layer.router_bias.data);
  Tokens result(shape, tokens, 1);
  result.random_states(seed);
  std::vector<float> logits(static_cast<size_t>(tokens * shape.experts));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t e = 0; e < shape.experts; ++e) {
      double logit = bias == nullptr ? 0 : bias[e];
      for (int64_t h = 0; h < shape.hidden; ++h) {
        logit += double{format::bf16_to_float(result.x_[static_cast<size_t>(t * shape.hidden + h)])} *
                 router[e * shape.hidden + h];
      }
      logits[static_cast<size_t>(t * shape.experts + e)] = static_cast<float>(logit);
    }
  }
  MoeGatingTopKArgs args;
  args.logits = TensorView(logits.data(), DType::kFloat32, {tokens, shape.experts});
  args.bias = layer.correction_bias;
  args.k = shape.topk;
  args.scoring = layer.scoring;
  args.n_group = routing.n_group;
  args.topk_group = routing.topk_group;
  args.group_score = routing.group_score;
  args.renormalize = routing.renormalize;
  args.routed_scaling_factor = routing.routed_scaling_factor;
  const MoeGatingTopKOutputs outputs{TensorRef(result.weights_.data(), DType::kFloat32, {tokens, shape.topk}),
                                     TensorRef(result.ids_.data(), DType::kInt32, {tokens, shape.topk})};
  MEGAMOE_RETURN_IF_ERROR(moe_gating_top_k(args, outputs));
  return result;
}

Batch Tokens::batch() const {
  const auto ids = [&](int routing) {
    return TensorView(ids_.data() + routing * tokens_ * shape_.topk, DType::kInt32, {tokens_, shape_.topk});
  };
  Batch batch;
  batch.x = TensorView(x_.data(), DType::kBFloat16, {tokens_, shape_.hidden});
  batch.topk_ids = ids(0);
  batch.topk_weights = TensorView(weights_.data(), DType::kFloat32, {tokens_, shape_.topk});
  for (int r = 1; r < routings_; ++r) batch.more_topk_ids.push_back(ids(r));
  return batch;
}

int64_t Tokens::distinct_experts(int64_t routing) const {
  const auto ids = ids_.begin() + routing * tokens_ * shape_.topk;
  return static_cast<int64_t>(std::set<int32_t>(ids, ids + tokens_ * shape_.topk).size());
}

double Tokens::distinct_experts() const {
  int64_t distinct = 0;
  for (int r = 0; r < routings_; ++r) distinct += distinct_experts(r);
  return static_cast<double>(distinct) / routings_;
}

std::vector<int64_t> Tokens::rows_of_experts() const {
  std::set<int64_t> numbers;
  const int64_t slots = tokens_ * shape_.topk;
  for (int r = 0; r < routings_; ++r) {
    std::vector<int64_t> rows(static_cast<size_t>(shape_.experts));
    for (int64_t i = 0; i < slots; ++i) ++rows[static_cast<size_t>(ids_[static_cast<size_t>(r * slots + i)])];
    numbers.insert(rows.begin(), rows.end());
  }
  numbers.erase(0);
  return {numbers.begin(), numbers.end()};
}

RandomLayer::RandomLayer(const Shape& shape, uint64_t seed, int64_t shared_experts, bool gated)
    : shape_(shape),
      inner_(gated ? shape.intermediate : 2 * shape.intermediate),
      shared_experts_(shared_experts),
      block1_(static_cast<size_t>(shape.hidden * 2 * shape.intermediate + shape.experts + shared_experts)),
      block2_(static_cast<size_t>(shape.hidden * inner_ + shape.experts + shared_experts)) {
  Values values(seed);
  const auto size1 = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.hidden)));
  const auto size2 = static_cast<float>(1.0 / std::sqrt(static_cast<double>(inner_)));
  for (uint16_t& w : block1_) w = values.next(size1);
  for (uint16_t& w : block2_) w = values.next(size2);
}

void RandomLayer::multiply(float factor1, float factor2) {
  cli::multiply(block1_, factor1);
  cli::multiply(block2_, factor2);
}

BufferConfig config_of(const Shape& shape) {
  BufferConfig config;
  config.num_experts = shape.experts;
  config.num_topk = shape.topk;
  config.hidden = shape.hidden;
  config.intermediate_hidden = shape.intermediate;
  return config;
}

LayerJob RandomLayer::job() const {
  LayerJob job;
  job.config = config_of(shape_);
  for (int64_t e = 0; e < shape_.experts + shared_experts_; ++e) {
    const bool shared = e >= shape_.experts;
    (shared ? job.shared_weight1 : job.weight1)
        .weight.push_back(
            TensorView(block1_.data() + e, DType::kBFloat16, {shape_.hidden, 2 * shape_.intermediate}));
    (shared ? job.shared_weight2 : job.weight2)
        .weight.push_back(TensorView(block2_.data() + e, DType::kBFloat16, {inner_, shape_.hidden}));
  }
  return job;
}

Shape shape_of(const checkpoint::MoeConfig& config) {
  return {config.hidden, config.intermediate, config.num_experts, config.top_k};
}

Result<LayerJob> checkpoint_job(const checkpoint::MoeCheckpoint& model, int64_t layer) {
  auto found = model.layer(layer);
  if (!found) return found.status();
  const checkpoint::MoeConfig& config = model.config();
  LayerJob job;
  job.config = config_of(shape_of(config));
  job.activation = config.activation;
  job.weight1 = std::move(found->weight1);
  job.weight2 = std::move(found->weight2);
  job.shared_weight1 = std::move(found->shared_weight1);
  job.shared_weight2 = std::move(found->shared_weight2);
  job.memory = std::move(found->memory);
  return job;
}

}  // namespace megamoe::cli
