// Rows whose columns are multiplied by smooth scales before anything else, over any float vector type V.
#pragma once

#include "quant/vectors.h"

namespace megamoe::quant {

/// The values of a row: fl(x * smooth), or x. Without `kSmooth` the factors are not read.
template <class V, bool kSmooth, class Input>
struct SmoothedRow {
  using Value = Input;
  static constexpr bool kSmoothed = kSmooth;
  const Input* x;
  const float* smooth;

  [[gnu::always_inline]] V load(int64_t i, int count) const {
    const V value = quant::load<V>(x + i, count);
    if constexpr (kSmooth) {
      return value * quant::load<V>(smooth + i, count);
    } else {
      return value;
    }
  }
};

/// Calls f with the row by its type.
template <class V, class F>
[[gnu::always_inline]] inline void with_smoothed(const QuantRow& r, F f) {
  with_input(
      r, [&]<class Input>(const Input* x) __attribute__((always_inline)) {
        if (r.smooth == nullptr) {
          f(SmoothedRow<V, false, Input>{x, nullptr});
        } else {
          f(SmoothedRow<V, true, Input>{x, r.smooth});
        }
      });
}

/// The largest magnitude of a row; NaN stays out of it.
template <class V, class Row>
[[gnu::always_inline]] inline float max_magnitude(const Row& row, int64_t n) {
  // Four maxima hide the latency of one; NaN as the first operand gives way to the second.
  V most[4] = {V::set(0), V::set(0), V::set(0), V::set(0)};
  int64_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    for (int j = 0; j < 4; ++j) most[j] = V::max(V::abs(row.load(i + j * V::kLanes, V::kLanes)), most[j]);
  }
  for (; i + V::kLanes <= n; i += V::kLanes) most[0] = V::max(V::abs(row.load(i, V::kLanes)), most[0]);
  if (V::kLanes > 1 && i < n) most[0] = V::max(V::abs(row.load(i, static_cast<int>(n - i))), most[0]);
  return V::max_lanes(V::max(V::max(most[0], most[1]), V::max(most[2], most[3])));
}

}  // namespace megamoe::quant
