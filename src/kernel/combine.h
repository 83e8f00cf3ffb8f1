// Combine of one token over any float vector type V: slots in order, multiply then add, one rounding at the
// end.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

/// `kVectors` neighbouring vectors from `column` on, so that the pointer of a slot is read once for all of
/// them.
template <class V, int kVectors>
void combine_columns(const CombineRow& r, int64_t column) {
  V sum[kVectors];
  for (int j = 0; j < kVectors; ++j)
    sum[j] = V::load(r.rows[0] + column + j * V::kLanes) * V::set(r.weights[0]);
  for (int slot = 1; slot < r.slots; ++slot) {
    const uint16_t* row = r.rows[slot] + column;
    const V weight = V::set(r.weights[slot]);
    for (int j = 0; j < kVectors; ++j) sum[j] = sum[j] + V::load(row + j * V::kLanes) * weight;
  }
  for (int j = 0; j < kVectors; ++j) V::store(r.out + column + j * V::kLanes, sum[j]);
}

template <class V>
void combine(const CombineRow& r) {
  if (r.slots == 0) {
    for (int64_t i = 0; i < r.h; ++i) r.out[i] = 0;
    return;
  }
  int64_t column = 0;
  for (; column + 4 * V::kLanes <= r.h; column += 4 * V::kLanes) combine_columns<V, 4>(r, column);
  for (; column + V::kLanes <= r.h; column += V::kLanes) combine_columns<V, 1>(r, column);
  if (column < r.h) {
    const int count = static_cast<int>(r.h - column);
    V sum = V::load(r.rows[0] + column, count) * V::set(r.weights[0]);
    for (int slot = 1; slot < r.slots; ++slot) {
      sum = sum + V::load(r.rows[slot] + column, count) * V::set(r.weights[slot]);
    }
    V::store(r.out + column, sum, count);
  }
}

}  // namespace megamoe::kernel
