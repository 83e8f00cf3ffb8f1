// int8 and int4 rules, over any float vector type V. Infinite elements make the scale of their row infinite
// and all its codes 0; NaN stays out of the maximum and becomes code 0.
#pragma once

#include "quant/codes.h"
#include "quant/smooth.h"

namespace megamoe::quant {

template <class V>
[[gnu::always_inline]] inline void store_int8(int8_t* codes, V value, int count) {
  count == V::kLanes ? V::store(codes, value) : V::store(codes, value, count);
}

/// out = fl(code * scale), `load` giving the codes as floats.
template <class V, class Load>
[[gnu::always_inline]] inline void scale_codes(const DequantRow& r, Load load) {
  const V scale = V::set(*static_cast<const float*>(r.scales));
  each_vector<V>(
      r.n, [&](int64_t i, int count) __attribute__((always_inline)) {
        const V value = load(i, count) * scale;
        count == V::kLanes ? V::store(r.out + i, value) : V::store(r.out + i, value, count);
      });
}

/// Codes of a row as floats: `kBits` bits of two's complement.
template <class V, class Codes>
[[gnu::always_inline]] inline V load_signed(const void* codes, int64_t i, int count) {
  using Int = typename V::Int;
  constexpr int kSign = 1 << (Codes::kBits - 1);
  const Int code = Codes::template load<V>(codes, i, count);
  return V::from_int(Int::select_less(code, Int::set(kSign), code, code - Int::set(2 * kSign)));
}

/// s = fl(max|x| / 127), q = RNE(fl(x / s)). A maximum so small that s rounds to 0 makes a zero row: s = 0, q
/// = 0. Codes are limited to +-127, which only matters where s is subnormal and therefore coarse.
struct Int8PerToken {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_smoothed<V>(
        r, [&r](const auto& row) __attribute__((always_inline)) {
          int8_t* const codes = static_cast<int8_t*>(r.codes);
          const float scale = max_magnitude<V>(row, r.n) / 127.0f;
          *static_cast<float*>(r.scales) = scale;
          if (scale == 0.0f) {
            for (int64_t i = 0; i < r.n; ++i) codes[i] = 0;
            return;
          }
          const V divisor = V::set(scale), limit = V::set(127.0f);
          each_vector<V>(
              r.n, [&](int64_t i, int count) __attribute__((always_inline)) {
                prefetch_next<V>(r, row.x, i, count);
                const V quotient = V::zero_if_nan(row.load(i, count) / divisor);
                store_int8(codes + i, V::max(V::negate(limit), V::min(limit, quotient)), count);
              });
        });
  }

  template <class V>
  static void dequantise(const DequantRow& r) {
    scale_codes<V>(
        r, [&r](int64_t i, int count)
               __attribute__((always_inline)) { return load_signed<V, ByteCodes>(r.codes, i, count); });
  }
};

/// q = RNE(fl(fl(x * scale) + offset)), limited to [-128, 127].
struct Int8Static {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_input(
        r, [&r](const auto* x) __attribute__((always_inline)) {
          const V scale = V::set(r.scale), offset = V::set(r.offset);
          each_vector<V>(
              r.n, [&](int64_t i, int count) __attribute__((always_inline)) {
                const V value = V::zero_if_nan(load<V>(x + i, count) * scale + offset);
                store_int8(static_cast<int8_t*>(r.codes) + i,
                           V::max(V::set(-128.0f), V::min(V::set(127.0f), value)), count);
              });
        });
  }

  /// fl(fl(q - offset) / scale)
  template <class V>
  static void dequantise(const DequantRow& r) {
    const V scale = V::set(r.scale), offset = V::set(r.offset);
    each_vector<V>(
        r.n, [&](int64_t i, int count) __attribute__((always_inline)) {
          const V value = (load_signed<V, ByteCodes>(r.codes, i, count) - offset) / scale;
          count == V::kLanes ? V::store(r.out + i, value) : V::store(r.out + i, value, count);
        });
  }
};

/// f = fl(7 / max|x|), q = fl(x * f) to the nearest integer, ties away from zero; s = fl(max|x| * fl(1 / 7)).
/// Where s rounds to 0 the row is a zero row: q = 0. Codes are limited to +-7, which only matters where f
/// overflows.
struct Int4Dynamic {
  template <class V>
  static void quantise(const QuantRow& r) {
    using Int = typename V::Int;
    with_smoothed<V>(
        r, [&r](const auto& row) __attribute__((always_inline)) {
          const float largest = max_magnitude<V>(row, r.n);
          const float scale = largest * (1.0f / 7.0f);
          *static_cast<float*>(r.scales) = scale;
          const V factor = V::set(scale == 0.0f ? 0.0f : 7.0f / largest);
          each_vector<V>(
              r.n, [&](int64_t i, int count) __attribute__((always_inline)) {
                prefetch_next<V>(r, row.x, i, count);
                const V value = V::zero_if_nan(row.load(i, count) * factor);
                const V magnitude = V::min(V::abs(value), V::set(7.0f));
                const V even = V::from_int(V::to_int(magnitude));
                const V away = V::select_less(magnitude - even, V::set(0.5f), even, even + V::set(1.0f));
                const V code = V::select_less(value, V::set(0.0f), V::negate(away), away);
                NibbleCodes::store<V>(r.codes, i, V::to_int(code) & Int::set(15), count);
              });
        });
  }

  template <class V>
  static void dequantise(const DequantRow& r) {
    scale_codes<V>(
        r, [&r](int64_t i, int count)
               __attribute__((always_inline)) { return load_signed<V, NibbleCodes>(r.codes, i, count); });
  }
};

}  // namespace megamoe::quant
