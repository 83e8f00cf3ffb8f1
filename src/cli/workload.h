// Layers and tokens to run: made up from a shape, or read from a checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/moe_checkpoint.h"
#include "cli/layer_job.h"

namespace megamoe::cli {

/// Layers and tokens that are measured. Calls take different experts in turn: a cache that keeps one call's
/// weights must not flatter the next.
inline constexpr uint64_t kMeasuredSeed = 7;
inline constexpr int kMeasuredRoutings = 16;

/// Sizes of a layer as written on the command line: hidden x intermediate x experts x top-k.
struct Shape {
  int64_t hidden = 0, intermediate = 0, experts = 0, topk = 0;
};
Result<Shape> parse_shape(const std::string& text);
/// The settings of a layer of a shape; what a shape does not say is as by default.
BufferConfig config_of(const Shape& shape);
/// "1,4,16" as numbers from 1.
Result<std::vector<int64_t>> parse_counts(const std::string& text, const char* name);

/// The names of a list with commas between them.
std::vector<std::string> split_names(const std::string& text);

/// Tokens with their routing, and the memory behind them.
class Tokens {
 public:
  /// Random hidden states and routing. "uniform": distinct experts, all alike. "zipf": distinct experts,
  /// expert e with weight 1 / (e + 1). "one": every token to the same first top-k experts. `routings` draws.
  static Result<Tokens> random(const Shape& shape, int64_t tokens, const std::string& routing, uint64_t seed,
                               int routings = 1);
  /// Random hidden states, routed once by the router of a layer.
  static Result<Tokens> routed(const Shape& shape, int64_t tokens, const checkpoint::MoeLayer& layer,
                               const checkpoint::RoutingConfig& routing, uint64_t seed);

  Batch batch() const;
  /// Experts that at least one slot goes to, on average over the routings.
  double distinct_experts() const;
  /// The same of one routing.
  int64_t distinct_experts(int64_t routing) const;
  /// Rows that experts get, ascending, each number once, over all routings.
  std::vector<int64_t> rows_of_experts() const;

 private:
  Tokens(const Shape& shape, int64_t tokens, int routings);
  void random_states(uint64_t seed);

  Shape shape_;
  int64_t tokens_;
  int routings_;
  std::vector<uint16_t> x_;
  std::vector<int32_t> ids_;  ///< [routing][token][slot]
  std::vector<float> weights_;
};

/// A layer of random bfloat16 weights. Experts view windows of one random block, so that the memory stays
/// small however many experts there are; packing gives every expert its own memory.
class RandomLayer {
 public:
  RandomLayer(const Shape& shape, uint64_t seed, int64_t shared_experts = 0, bool gated = true);
  LayerJob job() const;
  void multiply(float factor1, float factor2);  ///< powers of two for the weights of Linear1 and Linear2

 private:
  Shape shape_;
  int64_t inner_;  ///< reduction of Linear2
  int64_t shared_experts_;
  std::vector<uint16_t> block1_, block2_;
};

Shape shape_of(const checkpoint::MoeConfig& config);
/// A checkpoint's layer without batches.
Result<LayerJob> checkpoint_job(const checkpoint::MoeCheckpoint& model, int64_t layer);

}  // namespace megamoe::cli
