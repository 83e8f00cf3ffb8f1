// Combine of one token over any float vector type V: slots in order, multiply then add, one rounding at the
// end; and the conversion of float16 tokens.
#pragma once

#include "kernel/contract.h"
#include "kernel/row_sum.h"

namespace megamoe::kernel {

/// `kVectors` neighbouring vectors from `column` on, so that the pointer of a slot is read once for all of
/// them.
template <class V, int kVectors, class Out>
void combine_columns(const CombineRow& r, int64_t column, Out* out) {
  V sum[kVectors];
  for (int j = 0; j < kVectors; ++j)
    sum[j] = V::load(r.rows[0] + column + j * V::kLanes) * V::set(r.weights[0]);
  for (int slot = 1; slot < r.slots; ++slot) {
    const uint16_t* row = r.rows[slot] + column;
    const V weight = V::set(r.weights[slot]);
    for (int j = 0; j < kVectors; ++j) sum[j] = sum[j] + V::load(row + j * V::kLanes) * weight;
  }
  for (int j = 0; j < kVectors; ++j) store_rounded(out + column + j * V::kLanes, sum[j], V::kLanes);
}

template <class V, class Out>
void combine_to(const CombineRow& r, Out* out) {
  if (r.slots == 0) {
    for (int64_t i = 0; i < r.h; ++i) out[i] = {};
    return;
  }
  int64_t column = 0;
  for (; column + 4 * V::kLanes <= r.h; column += 4 * V::kLanes) combine_columns<V, 4>(r, column, out);
  for (; column + V::kLanes <= r.h; column += V::kLanes) combine_columns<V, 1>(r, column, out);
  if (column < r.h) {
    const int count = static_cast<int>(r.h - column);
    V sum = V::load(r.rows[0] + column, count) * V::set(r.weights[0]);
    for (int slot = 1; slot < r.slots; ++slot) {
      sum = sum + V::load(r.rows[slot] + column, count) * V::set(r.weights[slot]);
    }
    store_rounded(out + column, sum, count);
  }
}

template <class V>
void combine(const CombineRow& r) {
  r.half ? combine_to<V>(r, static_cast<format::Float16*>(r.out))
         : combine_to<V>(r, static_cast<uint16_t*>(r.out));
}

template <class V>
void half_to_bf16(const void* half, int64_t n, uint16_t* out) {
  const auto* const x = static_cast<const format::Float16*>(half);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, V::load(x + i));
  if (i < n) V::store(out + i, V::load(x + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

}  // namespace megamoe::kernel
