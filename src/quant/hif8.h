// HIFLOAT8 rules, over any float vector type V: nearest code, ties away from zero, saturating; NaN becomes 0.
#pragma once

#include "format/hifloat8.h"
#include "quant/codes.h"
#include "quant/smooth.h"

namespace megamoe::quant {

/// Codes of f(x) for every x of the row.
template <class V, class Input, class F>
[[gnu::always_inline]] inline void hif8_codes(const QuantRow& r, const Input* x, F f) {
  encode_columns<V, HiFloat8>(
      r.codes, x, 0, r.n, [=](V value) __attribute__((always_inline)) { return V::zero_if_nan(f(value)); });
}

/// out = f(decode(q))
template <class V, class F>
[[gnu::always_inline]] inline void hif8_values(const DequantRow& r, F f) {
  each_vector<V>(
      r.n, [&](int64_t i, int count) __attribute__((always_inline)) {
        const V value = f(V::lookup(format::kHiFloat8Values.of, ByteCodes::load<V>(r.codes, i, count)));
        count == V::kLanes ? V::store(r.out + i, value) : V::store(r.out + i, value, count);
      });
}

struct Hif8Cast {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_input(
        r, [&r](const auto* x) __attribute__((always_inline)) {
          hif8_codes<V>(
              r, x, [](V value) __attribute__((always_inline)) { return value; });
        });
  }
  template <class V>
  static void dequantise(const DequantRow& r) {
    hif8_values<V>(
        r, [](V value) __attribute__((always_inline)) { return value; });
  }
};

/// q = hif8(fl(x * scale))
struct Hif8PerTensor {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_input(
        r, [&r](const auto* x) __attribute__((always_inline)) {
          const V scale = V::set(r.scale);
          hif8_codes<V>(
              r, x, [=](V value) __attribute__((always_inline)) { return value * scale; });
        });
  }
  /// fl(decode(q) / scale)
  template <class V>
  static void dequantise(const DequantRow& r) {
    const V scale = V::set(r.scale);
    hif8_values<V>(
        r, [=](V value) __attribute__((always_inline)) { return value / scale; });
  }
};

/// s = max|x| * 2^-15, q = hif8(fl(x / s)); a zero row has s = 0, q = 0. An infinite element makes s infinite
/// and all codes 0.
struct Hif8PerToken {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_input(
        r, [&r]<class Input>(const Input* x) __attribute__((always_inline)) {
          const float scale = max_magnitude<V>(SmoothedRow<V, false, Input>{x, nullptr}, r.n) * 0x1p-15f;
          *static_cast<float*>(r.scales) = scale;
          if (scale == 0.0f) {
            clear_codes<V, ByteCodes>(r.codes, 0, r.n);
            return;
          }
          const V divisor = V::set(scale);
          hif8_codes<V>(
              r, x, [=](V value) __attribute__((always_inline)) { return value / divisor; });
        });
  }
  /// fl(decode(q) * s)
  template <class V>
  static void dequantise(const DequantRow& r) {
    const V scale = V::set(*static_cast<const float*>(r.scales));
    hif8_values<V>(
        r, [=](V value) __attribute__((always_inline)) { return value * scale; });
  }
};

}  // namespace megamoe::quant
