// Counting pass over top-k ids: one sweep validates, counts and numbers the rows.
#include "route/token_map.h"

#include <algorithm>
#include <string>

namespace megamoe::route {
namespace {

int64_t read_id(const TensorView& ids, int64_t token, int64_t slot) {
  const int64_t at = token * ids.strides[0] + slot * ids.strides[1];
  return ids.dtype == DType::kInt64 ? static_cast<const int64_t*>(ids.data)[at]
                                    : static_cast<const int32_t*>(ids.data)[at];
}

std::string slot_name(int64_t token, int64_t slot) {
  return "topk_ids[" + std::to_string(token) + "][" + std::to_string(slot) + "]";
}

}  // namespace

TokenMap::TokenMap(int64_t max_tokens, int64_t topk, int64_t experts)
    : topk_(topk),
      experts_(max_tokens * topk),
      order_(max_tokens * topk),
      used_(max_tokens),
      active_(max_tokens),
      counts_(experts) {}

void TokenMap::clear() {
  tokens_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0u);
}

Status TokenMap::build(const TensorView& topk_ids, const TensorView& active, const TokenMapLimits& limits) {
  clear();
  const int64_t tokens = topk_ids.shape[0];
  const auto* active_bytes = static_cast<const uint8_t*>(active.data);
  for (int64_t token = 0; token < tokens; ++token) {
    const bool takes_part = active_bytes == nullptr || active_bytes[token * active.strides[0]] != 0;
    active_[token] = takes_part ? 1 : 0;
    used_[token] = 0;
    if (!takes_part) {  // padding of a batch: its ids may be anything
      std::fill_n(experts_.begin() + token * topk_, topk_, -1);
      continue;
    }
    for (int64_t slot = 0; slot < topk_; ++slot) {
      const int64_t id = read_id(topk_ids, token, slot);
      const int64_t at = token * topk_ + slot;
      if (id < -1 || id >= limits.experts) {
        return Status(Code::kInvalidArgument, slot_name(token, slot) + " = " + std::to_string(id) +
                                                  ": expected -1 (slot not used) or an expert in [0, " +
                                                  std::to_string(limits.experts) + ")");
      }
      if (limits.distinct && id >= 0) {
        for (int64_t other = 0; other < slot; ++other) {
          if (read_id(topk_ids, token, other) == id) {
            return Status(Code::kInvalidArgument,
                          slot_name(token, slot) + " = " + std::to_string(id) +
                              ": expected experts distinct within a token, slot " + std::to_string(other) +
                              " has the same" + (limits.profile.empty() ? "" : " (profile ") +
                              std::string(limits.profile) + (limits.profile.empty() ? "" : ")"));
          }
        }
      }
      experts_[at] = static_cast<int32_t>(id);
      if (id < 0) continue;
      order_[at] = counts_[id]++;
      ++used_[token];
    }
  }
  tokens_ = tokens;
  return Status::ok();
}

}  // namespace megamoe::route
