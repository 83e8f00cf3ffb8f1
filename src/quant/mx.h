// MX rules: groups of 32 columns share a power of two. Floor: byte = floor(log2 max|x|) + 127 - emax;
// round-up: the smallest power of two under which nothing saturates.
#pragma once

#include "quant/codes.h"

namespace megamoe::quant {

inline constexpr int kMxGroup = 32;

/// The scale byte of a group and the bits of its reciprocal as a float.
struct MxScale {
  uint32_t byte;
  uint32_t multiplier;
};

// Rules from the largest magnitude as bfloat16 bits (truncated) to the scale. Groups with infinity or NaN do
// not get here. They are templates so that every level has its own.

/// `kSubnormals`: a group of bfloat16 subnormals keeps its values; else it counts as zero.
template <bool kSubnormals>
struct MxFloor {
  template <class V, class Code>
  [[gnu::always_inline]] static MxScale scale(uint32_t largest) {
    const uint32_t exponent = largest >> 7;
    const uint32_t byte = exponent <= Code::kEmax ? 0 : exponent - Code::kEmax;
    return {byte, !kSubnormals && exponent == 0 ? 0 : (254 - byte) << 23};
  }
};

/// `kAmax`: the largest magnitude counts as at least 1e-4.
template <bool kAmax>
struct MxRoundUp {
  template <class V, class Code>
  [[gnu::always_inline]] static MxScale scale(uint32_t largest) {
    constexpr uint32_t kLeast = 0x38d2;  // bfloat16 of 1e-4
    if (kAmax) largest = largest < kLeast ? kLeast : largest;
    if (!kAmax && largest == 0) return {0, 0};
    const uint32_t exponent = largest >> 7;
    // Mantissa of the largest code of both formats: 1.75.
    const uint32_t raised = exponent - Code::kEmax + ((largest & 0x7f) > 0x60 ? 1 : 0);
    const uint32_t byte = exponent <= Code::kEmax ? 1 : raised;
    return {byte, (254 - byte) << 23};
  }
};

template <class Code, class Rule>
struct Mx {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_input(
        r, [&r](const auto* x) __attribute__((always_inline)) { row<V>(r, x); });
  }

  /// decode(q) * 2^(byte - 127), rounded once; NaN for byte 255.
  template <class V>
  static void dequantise(const DequantRow& r) {
    const uint8_t* const bytes = static_cast<const uint8_t*>(r.scales);
    for (int64_t begin = 0; begin < r.n; begin += kMxGroup) {
      const uint32_t byte = bytes[begin / kMxGroup];
      const uint32_t bits = byte == 0 ? 0x00400000u : byte == 255 ? 0x7fc00000u : byte << 23;
      const V scale = V::from_bits(V::Int::set(static_cast<int32_t>(bits)));
      const int64_t columns = r.n - begin < kMxGroup ? r.n - begin : kMxGroup;
      each_vector<V>(
          columns, [&](int64_t i, int count) __attribute__((always_inline)) {
            const V value =
                Code::template decode<V>(Code::template load<V>(r.codes, begin + i, count)) * scale;
            count == V::kLanes ? V::store(r.out + begin + i, value)
                               : V::store(r.out + begin + i, value, count);
          });
    }
  }

 private:
  template <class V, class Input>
  [[gnu::always_inline]] static void row(const QuantRow& r, const Input* x) {
    uint8_t* const bytes = static_cast<uint8_t*>(r.scales);
    int64_t begin = 0;
    for (; begin + kMxGroup <= r.n; begin += kMxGroup) group<V>(r, x, begin, kMxGroup);
    if (begin < r.n) group<V>(r, x, begin, r.n - begin);
    const int64_t groups = (r.n + kMxGroup - 1) / kMxGroup;
    if (groups % 2 != 0) bytes[groups] = 0;
  }

  template <class V, class Input>
  [[gnu::always_inline]] static void group(const QuantRow& r, const Input* x, int64_t begin,
                                           int64_t columns) {
    uint8_t* const byte = static_cast<uint8_t*>(r.scales) + begin / kMxGroup;
    const uint32_t largest = max_magnitude_bits<V>(x + begin, columns) >> 16;
    if (largest >= 0x7f80) {
      *byte = 255;
      clear_codes<V, Code>(r.codes, begin, begin + columns);
      return;
    }
    const MxScale scale = Rule::template scale<V, Code>(largest);
    *byte = static_cast<uint8_t>(scale.byte);
    const V multiplier = V::from_bits(V::Int::set(static_cast<int32_t>(scale.multiplier)));
    each_vector<V>(
        columns, [&](int64_t i, int count) __attribute__((always_inline)) {
          const V value = load<V>(x + begin + i, count) * multiplier;
          Code::template store<V>(r.codes, begin + i, Code::template encode<V>(value), count);
        });
  }
};

using MxFloorE5M2 = Mx<E5M2, MxFloor<false>>;
using MxFloorE4M3 = Mx<E4M3, MxFloor<false>>;
using MxFloorE2M1 = Mx<E2M1, MxFloor<false>>;
using MxFloorSubnormalE2M1 = Mx<E2M1, MxFloor<true>>;
using MxRoundUpE5M2 = Mx<E5M2, MxRoundUp<false>>;
using MxRoundUpE4M3 = Mx<E4M3, MxRoundUp<false>>;
using MxRoundUpAmaxE5M2 = Mx<E5M2, MxRoundUp<true>>;
using MxRoundUpAmaxE4M3 = Mx<E4M3, MxRoundUp<true>>;

}  // namespace megamoe::quant
