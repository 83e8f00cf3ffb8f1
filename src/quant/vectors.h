// Walks over a row in vectors of V, whole ones first and then what is left.
#pragma once

#include <cstdint>
#include <type_traits>

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

/// bfloat16 values load two vectors at a time, the even columns and the odd ones: widening is then a shift or
/// a mask.
template <class Input>
inline constexpr bool kHasPairs = std::is_same_v<Input, uint16_t>;
/// Levels with vectors of 32 lanes of 16 bits, one MX group of bfloat16 each, name their type V::Words.
template <class V, class Input>
inline constexpr bool kHasWords = false;
template <class V>
requires requires {
  typename V::Words;
}
inline constexpr bool kHasWords<V, uint16_t> = true;

template <class V>
using Pair = decltype(V::load_pairs(nullptr));

/// Brings the columns [i, i + count) of the row that comes next into the cache.
template <class V, class Input>
[[gnu::always_inline]] inline void prefetch_next(const QuantRow& r, const Input*, int64_t i, int count) {
  if (r.next == nullptr) return;
  constexpr int kPerLine = 64 / sizeof(Input);
  const Input* const columns = static_cast<const Input*>(r.next) + i;
  for (int line = 0; line < count; line += kPerLine) __builtin_prefetch(columns + line);
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

/// The largest magnitudes among n values, lane by lane, as the bits of floats: NaN is above infinity. Exact
/// for subnormals. n may be 0 or less.
template <class V, class Input>
[[gnu::always_inline]] inline typename V::Int magnitude_lanes(const Input* x, int64_t n) {
  using Int = typename V::Int;
  constexpr int64_t kLine = 64 / sizeof(Input), kAhead = 32 * kLine;
  Int most = Int::set(0);
  int64_t i = 0;
  if constexpr (kHasWords<V, Input>) {
    using Words = typename V::Words;
    constexpr int kColumns = 2 * V::kLanes;
    Words words[4] = {Words::set(0), Words::set(0), Words::set(0), Words::set(0)};
    for (; i + 4 * kColumns <= n; i += 4 * kColumns) {
      for (int j = 0; j < 4; ++j) {
        __builtin_prefetch(x + i + j * kColumns + kAhead);
        words[j] = Words::max(words[j], Words::load(x + i + j * kColumns) & Words::set(0x7fff));
      }
    }
    const Words largest = Words::max(Words::max(words[0], words[1]), Words::max(words[2], words[3]));
    most = Words::max_of_pairs(largest) & Int::set(-0x10000);
  }
  if constexpr (kHasPairs<Input>) {
    for (; i + 2 * V::kLanes <= n; i += 2 * V::kLanes) {
      if (i % kLine == 0) __builtin_prefetch(x + i + kAhead);
      const Pair<V> pair = V::load_pairs(x + i);
      most = Int::max(most, Int::max(V::bits(V::abs(pair.even)), V::bits(V::abs(pair.odd))));
    }
  }
  each_vector<V>(
      n - i, [&](int64_t j, int count) __attribute__((always_inline)) {
        most = Int::max(most, V::bits(V::abs(load<V>(x + i + j, count))));
      });
  return most;
}

template <class V, class Input>
[[gnu::always_inline]] inline uint32_t max_magnitude_bits(const Input* x, int64_t n) {
  return static_cast<uint32_t>(V::Int::max_lanes(magnitude_lanes<V>(x, n)));
}

/// Codes of f(x) for n values from column `begin` on, which is even, by Code::encode and Code::store.
template <class V, class Code, class Input, class F>
[[gnu::always_inline]] inline void encode_columns(void* codes, const Input* x, int64_t begin, int64_t n,
                                                  F f) {
  int64_t i = begin;
  const int64_t end = begin + n;
  if constexpr (kHasPairs<Input>) {
    for (; i + 2 * V::kLanes <= end; i += 2 * V::kLanes) {
      const Pair<V> pair = V::load_pairs(x + i);
      Code::template store_pairs<V>(codes, i, Code::template encode<V>(f(pair.even)),
                                    Code::template encode<V>(f(pair.odd)));
    }
  }
  each_vector<V>(
      end - i, [&](int64_t j, int count) __attribute__((always_inline)) {
        Code::template store<V>(codes, i + j, Code::template encode<V>(f(load<V>(x + i + j, count))), count);
      });
}

}  // namespace megamoe::quant
