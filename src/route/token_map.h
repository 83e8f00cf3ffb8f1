// From top-k ids to rows: which slots are used, how many rows every expert gets, which row of its expert a
// slot is.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::route {

/// What is allowed in topk_ids.
struct TokenMapLimits {
  int64_t experts = 0;
  bool distinct = false;          ///< the same expert twice in a token is an error
  std::string_view profile = {};  ///< that forbids it
};

/// The map of one call on one rank. Memory is reserved for the largest call, so that build() allocates
/// nothing.
class TokenMap {
 public:
  TokenMap(int64_t max_tokens, int64_t topk, int64_t experts);

  /// topk_ids (T, K) int32 or int64, any strides, -1 = slot not used; active (T,) one byte per token or null
  /// data: 0 = token takes no part, its ids are not read. Of the others an id outside [0, experts) other than
  /// -1 is an error that names row, slot and value.
  Status build(const TensorView& topk_ids, const TensorView& active, const TokenMapLimits& limits);
  /// The map of a rank without tokens.
  void clear();

  int64_t tokens() const { return tokens_; }
  int64_t topk() const { return topk_; }
  /// Expert of a slot, or -1 for a slot that is not used.
  int32_t expert(int64_t token, int64_t slot) const { return experts_[token * topk_ + slot]; }
  /// Position of a used slot among this rank's rows of the same expert, in token-major order.
  uint32_t order(int64_t token, int64_t slot) const { return order_[token * topk_ + slot]; }
  /// Used slots of a token.
  uint32_t used(int64_t token) const { return used_[token]; }
  /// False for a token that takes no part: its result is zero, whatever its slots say.
  bool active(int64_t token) const { return active_[token] != 0; }
  /// Rows of this rank for every expert of the group.
  std::span<const uint32_t> counts() const { return counts_; }

 private:
  int64_t topk_ = 0;
  int64_t tokens_ = 0;
  std::vector<int32_t> experts_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> used_;
  std::vector<uint8_t> active_;
  std::vector<uint32_t> counts_;
};

}  // namespace megamoe::route
