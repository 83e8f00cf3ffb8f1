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

/// bfloat16 columns between what is read and what is brought into the cache, where no row comes next.
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
    if constexpr (kHasWords<V, Input>) {
      begin = word_blocks<V>(r, x);
    }
    for (; begin + kColumns <= r.n; begin += kColumns) groups<V, true>(r, x, begin, kColumns);
    if (begin < r.n) groups<V, false>(r, x, begin, r.n - begin);
    const int64_t count = (r.n + kMxGroup - 1) / kMxGroup;
    if (count % 2 != 0) static_cast<uint8_t*>(r.scales)[count] = 0;
  }

  /// Scales of as many groups as V has lanes from the lanes of `most`, whose largest is that of the group.
  template <class V>
  struct Scales {
    using Int = typename V::Int;
    static constexpr int kInfinity = 0x7f80;
    Int largest;  ///< as bfloat16 bits
    MxScales<Int> by_rule;
    Int bytes;

    [[gnu::always_inline]] explicit Scales(const Int (&most)[V::kLanes])
        : largest(Int::template shift_right<16>(Int::max_each(most))),
          by_rule(Rule::template scales<Code>(largest)),
          bytes(Int::select_less(largest, Int::set(kInfinity), by_rule.bytes, Int::set(255))) {}
    [[gnu::always_inline]] void store(const QuantRow& r, int64_t begin, int count) const {
      uint8_t* const row = static_cast<uint8_t*>(r.scales) + begin / kMxGroup;
      count == V::kLanes ? Int::store(row, bytes) : Int::store(row, bytes, count);
    }
    [[gnu::always_inline]] bool any_special() const {
      return Int::any_less(Int::set(kInfinity - 1), largest);
    }
  };

  /// `kWhole`: all groups that one vector of scales has room for, each of 32 columns.
  template <class V, bool kWhole, class Input>
  [[gnu::always_inline]] static void groups(const QuantRow& r, const Input* x, int64_t begin,
                                            int64_t columns) {
    using Int = typename V::Int;
    const int count = kWhole ? V::kLanes : static_cast<int>((columns + kMxGroup - 1) / kMxGroup);
    const auto width = [=](int g)
        __attribute__((always_inline)) {  // columns of group g, 0 or less past the last one
      const int64_t left = columns - int64_t{g} * kMxGroup;
      return kWhole || left > kMxGroup ? int64_t{kMxGroup} : left;
    };
    Int most[V::kLanes];
    for (int g = 0; g < V::kLanes; ++g) most[g] = magnitude_lanes<V>(x + begin + g * kMxGroup, width(g));
    const Scales<V> scales(most);
    scales.store(r, begin, count);
    alignas(64) float multipliers[V::kLanes];
    V::store(multipliers, V::from_bits(scales.by_rule.multipliers));
    for (int g = 0; g < count; ++g) {
      const V multiplier = V::set(multipliers[g]);
      encode_columns<V, Code>(
          r.codes, x, begin + g * kMxGroup,
          width(g), [=](V value) __attribute__((always_inline)) { return value * multiplier; });
    }
    if (!scales.any_special()) return;
    for (int g = 0; g < count; ++g) {
      const int64_t first = begin + g * kMxGroup;
      if (static_cast<const uint8_t*>(r.scales)[first / kMxGroup] == 255)
        clear_codes<V, Code>(r.codes, first, first + width(g));
    }
  }

  /// Blocks of groups whose scales come first, then their codes: a code does not wait for the maximum of its
  /// group, and the columns are still in the first cache. Twice or four times as many are slower from memory.
  static constexpr int kBlocks = 4;
  /// Groups that codes are made of at a time.
  static constexpr int kFour = 4;

  /// Quantises the groups of a row of bfloat16, up to three of the last ones excepted, and returns the first
  /// column that is left.
  template <class V>
  [[gnu::always_inline]] static int64_t word_blocks(const QuantRow& r, const uint16_t* x) {
    alignas(64) float biases[kBlocks * V::kLanes];
    int64_t begin = 0;
    const auto groups_of_block = [&r](int64_t first) __attribute__((always_inline)) {
      const int64_t left = (r.n - first) / kMxGroup;
      return left < V::kLanes ? static_cast<int>(left) : V::kLanes;
    };
    while (groups_of_block(begin) >= kFour) {
      uint32_t simple = 0;  // a bit for every block
      int blocks = 0;
      for (int64_t first = begin; blocks < kBlocks; ++blocks) {
        const int count = groups_of_block(first);
        if (count < kFour) break;
        float* const block_biases = biases + blocks * V::kLanes;
        const bool is_simple = count == V::kLanes ? word_scales<V, true>(r, x, first, count, block_biases)
                                                  : word_scales<V, false>(r, x, first, count, block_biases);
        simple |= uint32_t{is_simple} << blocks;
        first += count * kMxGroup;
      }
      for (int b = 0; b < blocks; ++b) {
        const int count = groups_of_block(begin);
        if (simple >> b & 1) {
          word_codes<V>(r, x, begin, count, biases + b * V::kLanes);
        } else {
          groups<V, false>(r, x, begin, count * kMxGroup);
        }
        begin += count * kMxGroup;
      }
    }
    return begin;
  }

  /// False if a group has infinity, NaN or so small a maximum that word_codes is not exact.
  template <class V, bool kWhole>
  [[gnu::always_inline]] static bool word_scales(const QuantRow& r, const uint16_t* x, int64_t begin,
                                                 int count, float* biases) {
    using Words = typename V::Words;
    using Int = typename V::Int;
    Int most[V::kLanes];
    for (int g = 0; g < V::kLanes; ++g) {
      const int group = kWhole || g < count ? g : count - 1;  // the last one once more has no effect
      most[g] = Words::max_of_pairs(Words::load(x + begin + group * kMxGroup) & Words::set(0x7fff));
    }
    const Scales<V> scales(most);
    scales.store(r, begin, count);
    const Int bias = Code::word_bias(scales.bytes);
    V::store(biases, V::from_bits(bias | Int::template shift_left<16>(bias)));
    return !scales.any_special() && !Int::any_less(scales.bytes, Int::set(Code::kFirstWordsByte));
  }

  template <class V>
  [[gnu::always_inline]] static void word_codes(const QuantRow& r, const uint16_t* x, int64_t begin,
                                                int count, const float* biases) {
    using Words = typename V::Words;
    const uint16_t* const ahead = r.next != nullptr ? static_cast<const uint16_t*>(r.next) : x + kWordsAhead;
    for (int g = 0; g < count; g += kFour) {
      const int four = g < count - kFour ? g : count - kFour;  // the last ones overlap
      const int64_t first = begin + four * kMxGroup;
      Words columns[kFour], bias[kFour];
      for (int j = 0; j < kFour; ++j) {
        __builtin_prefetch(ahead + first + j * kMxGroup);
        columns[j] = Words::load(x + first + j * kMxGroup);
        bias[j] = Words::from_pairs(V::bits(V::set(biases[four + j])));
      }
      Code::encode_four(static_cast<uint8_t*>(r.codes) + first * Code::kBits / 8, columns, bias);
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
