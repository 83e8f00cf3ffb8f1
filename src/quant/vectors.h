// Walks over a row in vectors of V, whole ones first and then what is left.
#pragma once

#include <cstdint>

#include "format/float16.h"
#include "quant/row.h"

namespace megamoe::quant {

/// Calls f(first column, count) for every vector of n columns. `count` is V::kLanes but for the last one.
template <class V, class F>
[[gnu::always_inline]] inline void each_vector(int64_t n, F f) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) f(i, V::kLanes);
  if (V::kLanes > 1 && i < n) f(i, static_cast<int>(n - i));
}

/// `count` values; lanes past them are 0.
template <class V, class Input>
[[gnu::always_inline]] inline V load(const Input* x, int count) {
  return count == V::kLanes ? V::load(x) : V::load(x, count);
}

/// Calls f with the row's values by their type: bfloat16 as uint16_t.
template <class F>
[[gnu::always_inline]] inline void with_input(const QuantRow& r, F f) {
  switch (r.input) {
    case DType::kBFloat16:
      return f(static_cast<const uint16_t*>(r.x));
    case DType::kFloat16:
      return f(static_cast<const format::Float16*>(r.x));
    default:
      return f(static_cast<const float*>(r.x));
  }
}

/// The largest magnitude among n values as the bits of a float: NaN is above infinity. Exact for subnormals.
template <class V, class Input>
[[gnu::always_inline]] inline uint32_t max_magnitude_bits(const Input* x, int64_t n) {
  using Int = typename V::Int;
  Int most = Int::set(0);
  each_vector<V>(
      n, [&](int64_t i, int count) __attribute__((always_inline)) {
        most = Int::max(most, V::bits(V::abs(load<V>(x + i, count))));
      });
  return static_cast<uint32_t>(Int::max_lanes(most));
}

}  // namespace megamoe::quant
