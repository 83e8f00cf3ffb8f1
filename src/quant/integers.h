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
        r, [&r]<class Row>(const Row& row) __attribute__((always_inline)) {
          if constexpr (kHasPairs<typename Row::Value> && !Row::kSmoothed) {
            if (by_factor<V>(r, row.x)) return;
          }
          by_quotient<V>(r, row);
        });
  }

  template <class V>
  static void dequantise(const DequantRow& r) {
    scale_codes<V>(
        r, [&r](int64_t i, int count)
               __attribute__((always_inline)) { return load_signed<V, ByteCodes>(r.codes, i, count); });
  }

 private:
  template <class V, class Row>
  [[gnu::always_inline]] static void by_quotient(const QuantRow& r, const Row& row) {
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
  }

  /// The same for bfloat16 by a product, which is faster. False, and nothing written, for rows with NaN or
  /// infinity and where the scale may be subnormal.
  template <class V>
  [[gnu::always_inline]] static bool by_factor(const QuantRow& r, const uint16_t* x) {
    const uint32_t bits = max_magnitude_bits<V>(x, r.n);
    constexpr uint32_t kLeast = 0x08000000u, kInfinity = 0x7f800000u;  // 2^-111
    if (bits < kLeast || bits >= kInfinity) return false;
    const float largest = __builtin_bit_cast(float, bits), scale = largest / 127.0f;
    *static_cast<float*>(r.scales) = scale;
    const V factor = V::set(factor_of(largest, scale));
    int8_t* const codes = static_cast<int8_t*>(r.codes);
    int64_t i = 0;
    for (; i + 2 * V::kLanes <= r.n; i += 2 * V::kLanes) {
      prefetch_next<V>(r, x, i, 2 * V::kLanes);
      const Pair<V> pair = V::load_pairs(x + i);
      V::store_pairs(codes + i, pair.even * factor, pair.odd * factor);
    }
    each_vector<V>(
        r.n - i, [&](int64_t j, int count) __attribute__((always_inline)) {
          store_int8(codes + i + j, load<V>(x + i + j, count) * factor, count);
        });
    return true;
  }

  /// f with RNE(fl(x * f)) = RNE(fl(x / scale)) for all bfloat16 x up to the largest. 127 is prime, so
  /// half of the largest, at 63.5, is the only x near a tie; all others are farther from one than both
  /// roundings. fl(1 / scale) or a neighbour of it puts that one on the side where the quotient has it.
  static float factor_of(float largest, float scale) {
    const float factor = 1.0f / scale, half = 0.5f * largest;
    const auto bits = __builtin_bit_cast(uint32_t, factor);
    const bool up = half / scale >= 63.5f;
    for (uint32_t candidate : {bits, up ? bits + 1 : bits - 1}) {
      const float f = __builtin_bit_cast(float, candidate);
      if ((half * f >= 63.5f) == up) return f;
    }
    __builtin_unreachable();
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
