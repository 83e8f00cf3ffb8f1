// Stable sort of slots by expert id in linear time: where each slot goes, and how many go to each expert.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"
#include "route/workers.h"

namespace megamoe::route {

/// Positions are int32.
inline constexpr int64_t kMostSlots = std::numeric_limits<int32_t>::max();

/// Ids of the slots of all rows, (N,) or (N, K) int32 or int64 with any strides.
class IdView {
 public:
  explicit IdView(const TensorView& ids);

  int64_t count() const { return count_; }
  int64_t columns() const { return columns_; }
  bool wide() const { return wide_; }
  int64_t at(int64_t slot) const {
    const int64_t i = slot / columns_ * row_stride_ + slot % columns_ * column_stride_;
    return wide_ ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
  }

  /// `n` <= kBlock ids from slot `begin` on: in place where they lie side by side, else gathered in
  /// `scratch`.
  static constexpr int64_t kBlock = 1024;
  template <class Id>
  const Id* block(int64_t begin, int64_t n, Id* scratch) const {
    const auto* const data = static_cast<const Id*>(data_);
    if (contiguous_) return data + begin;
    int64_t row = begin / columns_, column = begin % columns_;
    for (int64_t i = 0; i < n; ++i) {
      scratch[i] = data[row * row_stride_ + column * column_stride_];
      if (++column == columns_) column = 0, ++row;
    }
    return scratch;
  }

 private:
  const void* data_;
  bool wide_;
  bool contiguous_;
  int64_t count_, columns_, row_stride_, column_stride_;
};

/// Smallest and largest id; {0, -1} without ids.
struct IdRange {
  int64_t least = 0;
  int64_t most = -1;
};
IdRange id_range(const IdView& ids, Workers& workers);
/// Slot of the first id outside [least, most], with its value.
struct IdAt {
  int64_t slot;
  int64_t id;
};
IdAt first_outside(const IdView& ids, int64_t least, int64_t most);

/// Where slots go.
struct Placement {
  int64_t kept_buckets = 0;  ///< slots of later buckets get -1
  int64_t capacity = 0;      ///< 0: position in the sorted order. Else bucket * capacity + number inside the
                             ///< bucket, -1 from number `capacity` on
};

/// Counting sort. The bucket of an id is id - start, and the last one for ids below start. All ids must lie
/// in
/// [-1, start + buckets - 1).
class CountingSort {
 public:
  /// Counts; reads the ids once.
  CountingSort(const IdView& ids, int64_t start, int64_t buckets, Workers& workers);

  /// Slots of each bucket.
  std::span<const int64_t> counts() const { return counts_; }
  /// out[slot] = where the slot goes. `order`, if given, gets the slots in sorted order, all of them. Can be
  /// called once.
  void place(const Placement& placement, int32_t* out, int32_t* order, Workers& workers);

 private:
  template <class Id>
  void count_part(int part);
  template <class Id>
  void place_part(int part, const Placement& placement, int32_t* out, int32_t* order);

  IdView ids_;
  int64_t start_;
  int64_t buckets_;
  int parts_;
  std::vector<int64_t> counts_;
  std::vector<uint32_t> first_;  ///< position of the first slot of each bucket
  std::vector<uint32_t> next_;   ///< per part and bucket: count, then next position
};

/// out[slot] = position of the slot in the stable order of ids from 0 to `most`, by digits: for ids that are
/// too large to count one by one.
void radix_positions(const IdView& ids, int64_t most, int32_t* out);

}  // namespace megamoe::route
