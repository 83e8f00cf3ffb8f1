// MX rules: groups of 32 columns share a power of two. Floor: byte = floor(log2 max|x|) + 127 - emax;
// round-up: the smallest power of two under which nothing saturates.
#pragma once

#include "quant/codes.h"

namespace megamoe::quant {

inline constexpr int kMxGroup = 32;

/// The scale bytes of as many groups as V has lanes, and the bits of their reciprocals as floats.
template <class Int>
struct MxScales {
  Int bytes;
  Int multipliers;
};

// Rules from the largest magnitudes as bfloat16 bits (truncated) to the scales. What they make of groups with
// infinity or NaN is not used.

/// `kSubnormals`: a group of bfloat16 subnormals keeps its values; else it counts as zero.
template <bool kSubnormals>
struct MxFloor {
  template <class Code, class Int>
  [[gnu::always_inline]] static MxScales<Int> scales(Int largest) {
    const Int exponent = Int::template shift_right<7>(largest);
    const Int byte = Int::max(exponent - Int::set(Code::kEmax), Int::set(0));
    const Int multiplier = Int::template shift_left<23>(Int::set(254) - byte);
    if constexpr (kSubnormals) return {byte, multiplier};
    return {byte, Int::select_less(exponent, Int::set(1), Int::set(0), multiplier)};
  }
};

/// `kAmax`: the largest magnitude counts as at least 1e-4.
template <bool kAmax>
struct MxRoundUp {
  template <class Code, class Int>
  [[gnu::always_inline]] static MxScales<Int> scales(Int largest) {
    constexpr int kLeast = 0x38d2;  // bfloat16 of 1e-4
    constexpr int kMantissa = Code::kLargest >> 16 & 0x7f;
    if (kAmax) largest = Int::max(largest, Int::set(kLeast));
    const Int exponent = Int::template shift_right<7>(largest);
    const Int raise =
        Int::select_less(Int::set(kMantissa), largest & Int::set(0x7f), Int::set(1), Int::set(0));
    Int byte = Int::select_less(Int::set(Code::kEmax), exponent, exponent - Int::set(Code::kEmax) + raise,
                                Int::set(1));
    Int multiplier = Int::template shift_left<23>(Int::set(254) - byte);
    if constexpr (!kAmax) {
      byte = Int::select_less(largest, Int::set(1), Int::set(0), byte);
      multiplier = Int::select_less(largest, Int::set(1), Int::set(0), multiplier);
    }
    return {byte, multiplier};
  }
};

/// bfloat16 columns between what is read and what is brought into the cache.
inline constexpr int64_t kWordsAhead = 4096;

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
    // As many groups at a time as V has lanes: their scales are one vector.
    constexpr int64_t kColumns = V::kLanes * kMxGroup;
    int64_t begin = 0;
    for (; begin + kColumns <= r.n; begin += kColumns) groups<V, true>(r, x, begin, kColumns);
    if (begin < r.n) groups<V, false>(r, x, begin, r.n - begin);
    const int64_t count = (r.n + kMxGroup - 1) / kMxGroup;
    if (count % 2 != 0) static_cast<uint8_t*>(r.scales)[count] = 0;
  }

  /// `kWhole`: all groups that one vector of scales has room for, each of 32 columns.
  template <class V, bool kWhole, class Input>
  [[gnu::always_inline]] static void groups(const QuantRow& r, const Input* x, int64_t begin,
                                            int64_t columns) {
    using Int = typename V::Int;
    constexpr int kInfinity = 0x7f80;
    const int count = kWhole ? V::kLanes : static_cast<int>((columns + kMxGroup - 1) / kMxGroup);
    const auto width = [=](int g)
        __attribute__((always_inline)) {  // columns of group g, 0 or less past the last one
      const int64_t left = columns - int64_t{g} * kMxGroup;
      return kWhole || left > kMxGroup ? int64_t{kMxGroup} : left;
    };
    Int most[V::kLanes];
    for (int g = 0; g < V::kLanes; ++g) {
      const Input* const group = x + begin + g * kMxGroup;
      if constexpr (kWhole && kHasWords<V, Input>) {
        using Words = typename V::Words;
        __builtin_prefetch(group + kWordsAhead);
        most[g] = Words::max_of_pairs(Words::load(group) & Words::set(0x7fff));
      } else {
        most[g] = magnitude_lanes<V>(group, width(g));
      }
    }
    const Int largest = Int::template shift_right<16>(Int::max_each(most));
    const MxScales<Int> scales = Rule::template scales<Code>(largest);
    const Int bytes = Int::select_less(largest, Int::set(kInfinity), scales.bytes, Int::set(255));
    uint8_t* const scale_row = static_cast<uint8_t*>(r.scales) + begin / kMxGroup;
    count == V::kLanes ? Int::store(scale_row, bytes) : Int::store(scale_row, bytes, count);
    const bool special = Int::max_lanes(largest) >= kInfinity;
    if constexpr (kWhole && kHasWords<V, Input>) {
      using Words = typename V::Words;
      const Int lowest = Int::select_less(bytes, Int::set(Code::kFirstWordsByte), Int::set(1), Int::set(0));
      if (!special && Int::max_lanes(lowest) == 0) {
        const Int bias = Code::word_bias(bytes);
        alignas(64) float biases[V::kLanes];
        V::store(biases, V::from_bits(bias | Int::template shift_left<16>(bias)));
        for (int g = 0; g < count; ++g) {
          const int64_t first = begin + g * kMxGroup;
          const Words codes =
              Code::encode_words(Words::load(x + first), Words::from_pairs(V::bits(V::set(biases[g]))));
          Code::store_words(r.codes, first, codes);
        }
        return;
      }
    }
    alignas(64) float multipliers[V::kLanes];
    V::store(multipliers, V::from_bits(scales.multipliers));
    for (int g = 0; g < count; ++g) {
      const V multiplier = V::set(multipliers[g]);
      encode_columns<V, Code>(
          r.codes, x, begin + g * kMxGroup,
          width(g), [=](V value) __attribute__((always_inline)) { return value * multiplier; });
    }
    if (!special) return;
    for (int g = 0; g < count; ++g) {
      const int64_t first = begin + g * kMxGroup;
      if (scale_row[g] == 255) clear_codes<V, Code>(r.codes, first, first + width(g));
    }
  }
};

using MxFloorE5M2 = Mx<E5M2, MxFloor<false>>;
using MxFloorE4M3 = Mx<E4M3, MxFloor<false>>;
using MxFloorE2M1 = Mx<E2M1, MxFloor<false>>;
using MxFloorSubnormalE2M1 = Mx<E2M1, MxFloor<true>>;
using MxRoundUpE5M2 = Mx<E5M2, MxRoundUp<false>>;
using MxRoundUpE4M3 = Mx<E4M3, MxRoundUp<false>>;
using MxRoundUpE2M1 = Mx<E2M1, MxRoundUp<false>>;
using MxRoundUpAmaxE5M2 = Mx<E5M2, MxRoundUp<true>>;
using MxRoundUpAmaxE4M3 = Mx<E4M3, MxRoundUp<true>>;

}  // namespace megamoe::quant
