// The k largest keys of a row, ties to the lowest index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megamoe::route {

/// Keys are offered in ascending order of their indices; none is NaN.
class TopK {
 public:
  explicit TopK(int64_t k) : keys_(static_cast<size_t>(k)), ids_(static_cast<size_t>(k)) {}

  void clear() { count_ = 0; }
  /// Keys of indices [begin, end).
  void offer(const float* keys, int64_t begin, int64_t end) {
    const int64_t k = static_cast<int64_t>(keys_.size());
    int64_t i = begin;
    for (; i < end && count_ < k; ++i) {
      ++count_;
      insert(keys[i], i);
    }
    constexpr int64_t kBlock = 16;
    for (; i + kBlock <= end; i += kBlock) {
      const float worst = keys_[k - 1];
      int better = 0;
      for (int64_t j = 0; j < kBlock; ++j) better |= keys[i + j] > worst;
      if (better == 0) continue;
      for (int64_t j = i; j < i + kBlock; ++j) {
        if (keys[j] > keys_[k - 1]) insert(keys[j], j);
      }
    }
    for (; i < end; ++i) {
      if (keys[i] > keys_[k - 1]) insert(keys[i], i);
    }
  }

  /// Indices of the largest keys, largest first.
  std::span<const int32_t> ids() const { return {ids_.data(), static_cast<size_t>(count_)}; }

 private:
  /// Replaces the last entry.
  void insert(float key, int64_t id) {
    int64_t at = count_ - 1;
    for (; at > 0 && keys_[at - 1] < key; --at) {
      keys_[at] = keys_[at - 1];
      ids_[at] = ids_[at - 1];
    }
    keys_[at] = key;
    ids_[at] = static_cast<int32_t>(id);
  }

  int64_t count_ = 0;
  std::vector<float> keys_;
  std::vector<int32_t> ids_;
};

}  // namespace megamoe::route
