// Saturating conversion of float vectors to 8-bit and 4-bit codes and back, over any float vector type V, and
// where the codes of a row lie.
#pragma once

#include <cstdint>

#include "quant/vectors.h"

namespace megamoe::quant {

/// A row of one byte per code.
struct ByteCodes {
  static constexpr int kBits = 8;
  template <class V>
  [[gnu::always_inline]] static void store(void* row, int64_t i, typename V::Int codes, int count) {
    uint8_t* const p = static_cast<uint8_t*>(row) + i;
    count == V::kLanes ? V::Int::store(p, codes) : V::Int::store(p, codes, count);
  }
  template <class V>
  [[gnu::always_inline]] static void store_pairs(void* row, int64_t i, typename V::Int even,
                                                 typename V::Int odd) {
    V::Int::store_byte_pairs(static_cast<uint8_t*>(row) + i, even, odd);
  }
  template <class V>
  [[gnu::always_inline]] static typename V::Int load(const void* row, int64_t i, int count) {
    const uint8_t* const p = static_cast<const uint8_t*>(row) + i;
    return count == V::kLanes ? V::Int::load(p) : V::Int::load(p, count);
  }
};

/// A row of two codes per byte, the even column in the low half. Columns are even in number.
struct NibbleCodes {
  static constexpr int kBits = 4;
  template <class V>
  [[gnu::always_inline]] static void store(void* row, int64_t i, typename V::Int codes, int count) {
    uint8_t* const p = static_cast<uint8_t*>(row);
    count == V::kLanes ? V::Int::store_nibbles(p, i, codes) : V::Int::store_nibbles(p, i, codes, count);
  }
  template <class V>
  [[gnu::always_inline]] static void store_pairs(void* row, int64_t i, typename V::Int even,
                                                 typename V::Int odd) {
    V::Int::store_nibble_pairs(static_cast<uint8_t*>(row) + i / 2, even, odd);
  }
  template <class V>
  [[gnu::always_inline]] static typename V::Int load(const void* row, int64_t i, int count) {
    const uint8_t* const p = static_cast<const uint8_t*>(row);
    return count == V::kLanes ? V::Int::load_nibbles(p, i) : V::Int::load_nibbles(p, i, count);
  }
};

/// a * b as a multiply-add: a multiplication with subnormal numbers in some lanes, or one that ends in some,
/// is several times slower on some CPUs. Adding -0 changes nothing, no sign of zero either.
template <class V>
[[gnu::always_inline]] inline V steady_product(V a, V b) {
  return V::fma(a, b, V::set(-0.0f));
}

/// A format of sign, exponent and `kMantissa` bits whose smallest normal number has the float exponent field
/// kFirst.
template <class Row, int kMantissaBits, int kFirstExponent, uint32_t kLargestBits, int kLargestExponent,
          bool kSpecials>
struct SmallFloat : Row {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kFirst = kFirstExponent;
  static constexpr uint32_t kLargest = kLargestBits;  ///< the largest number, as float bits
  static constexpr int kEmax = kLargestExponent;      ///< its exponent

  /// Nearest code, ties to even; numbers past the largest become the largest. The sign of zero stays. x is
  /// not NaN.
  template <class V>
  [[gnu::always_inline]] static typename V::Int encode(V x) {
    using Int = typename V::Int;
    constexpr int kDropped = 23 - kMantissa;
    constexpr int kSign = 1 << (Row::kBits - 1);
    const V magnitude = V::min(V::abs(x), V::from_bits(Int::set(kLargest)));
    // Adding 2^kDropped units of the last kept bit makes the float adder round there; the units are those of
    // the smallest normal binade below it, which gives subnormal codes. The exponent part of the code already
    // stands in the low bits of what is added, as an even number of units: the sum ends in the code.
    const Int exponent =
        V::bits(V::max(magnitude, V::from_bits(Int::set(kFirst << 23)))) & Int::set(0x7f800000);
    const Int magic = exponent + Int::template shift_right<kDropped>(exponent) +
                      Int::set((kDropped << 23) - (kFirst << kMantissa));
    return Int::merge(Int::set(kSign - 1), V::bits(magnitude + V::from_bits(magic)),
                      Int::template shift_right<32 - Row::kBits>(V::bits(x)));
  }

  /// Exponent bytes from which encode_four is exact: below, bfloat16 subnormals would have codes of their
  /// own.
  static constexpr int kFirstWordsByte = 127 - kFirst + 3 + kMantissa;

  /// As encode(x * 2^(127 - byte)) for four vectors of bfloat16 bits in 16-bit lanes, which hold all of their
  /// 8 significant bits. Every lane of `bias` is word_bias(byte).
  template <class Int>
  [[gnu::always_inline]] static Int word_bias(Int byte) {
    return Int::template shift_left<7>(byte + Int::set(kFirst - 128)) - Int::set(kBelowHalf);
  }
  template <class Words>
  [[gnu::always_inline]] static void encode_four(uint8_t* codes, const Words (&x)[4],
                                                 const Words (&bias)[4]) {
    constexpr int kLargestCode = static_cast<int>(kLargest >> (23 - kMantissa)) - ((kFirst - 1) << kMantissa);
    Words rounded[4];
    auto subnormal = Words::less_and_not_zero(x[0], x[0], x[0]);
    for (int j = 0; j < 4; ++j) {
      const Words magnitude = x[j] & Words::set(0x7fff);
      // Exponent and mantissa with the bias of the code, raised for ties to even: by half a unit less one,
      // and all of the half where the kept part is odd.
      const Words raised = Words::subtract_to_zero(magnitude, bias[j]);
      const Words odd = Words::template shift_right<kWordsDropped>(x[j]) & Words::set(1);
      rounded[j] = Words::template shift_right<kWordsDropped>(raised + odd);
      subnormal |= Words::less_and_not_zero(raised, Words::set(0x80 + kBelowHalf), magnitude);
    }
    if (subnormal != 0) [[unlikely]] {
      for (int j = 0; j < 4; ++j) rounded[j] = encode_any(x[j], bias[j]);
    }
    Words::store_bytes(codes, rounded, x, kLargestCode);
  }

  template <class V>
  [[gnu::always_inline]] static V decode(typename V::Int code) {
    using Int = typename V::Int;
    constexpr int kSign = 1 << (Row::kBits - 1);
    const Int magnitude = code & Int::set(kSign - 1);
    // As a float the code is too small by the difference of the biases, subnormals included.
    V value = steady_product(V::from_bits(Int::template shift_left<23 - kMantissa>(magnitude)),
                             V::from_bits(Int::set((127 + kFirst - 1) << 23)));
    if constexpr (kSpecials) {
      constexpr uint32_t largest_code =
          (kLargest >> (23 - kMantissa)) - (static_cast<uint32_t>(kFirst - 1) << kMantissa);
      // Codes past the largest number: infinity where the mantissa bits say so, else NaN.
      const Int infinity = Int::set(((1 << (Row::kBits - 1 - kMantissa)) - 1) << kMantissa);
      const Int past = Int::select_less(infinity, magnitude, Int::set(0x7fc00000), Int::set(0x7f800000));
      const Int special = kMantissa == 3 ? Int::set(0x7fc00000) : past;
      value = V::from_bits(
          Int::select_less(Int::set(static_cast<int32_t>(largest_code)), magnitude, special, V::bits(value)));
    }
    const Int sign = Int::template shift_left<32 - Row::kBits>(code & Int::set(kSign));
    return V::from_bits(V::bits(value) | sign);
  }

 private:
  static constexpr int kWordsDropped = 7 - kMantissa;
  static constexpr int kBelowHalf = (1 << (kWordsDropped - 1)) - 1;

  /// Magnitudes of the codes, subnormal ones too.
  template <class Words>
  [[gnu::always_inline]] static Words encode_any(Words x, Words bias) {
    // Positive numbers of normal codes order as the codes do.
    const Words scaled = (x & Words::set(0x7fff)) - bias - Words::set(kBelowHalf);
    // Subnormal codes drop more bits of the significand, one for each exponent below the first.
    const Words dropped =
        Words::max(Words::set(kWordsDropped + 1) - Words::template shift_right_signed<7>(scaled),
                   Words::set(kWordsDropped));
    const Words significand = Words::merge(Words::set(0x7f), x, Words::set(0x80));
    const Words kept = Words::select_less(scaled, Words::set(0x80), significand, scaled);
    const Words even = Words::and_not(Words::shift_right(kept, dropped), Words::set(1));
    const Words minus_half = Words::shift_left(Words::set(-1), dropped - Words::set(1));
    return Words::shift_right(kept - minus_half - even, dropped);
  }
};

using E4M3 = SmallFloat<ByteCodes, 3, 121, 0x43e00000u, 8, true>;
using E5M2 = SmallFloat<ByteCodes, 2, 113, 0x47600000u, 15, true>;
/// Magnitudes of E2M1 codes by quarters of a binade, from the one below 0.25 on.
struct E2M1Quarters {
  uint16_t codes[32] = {};
  consteval E2M1Quarters() {
    for (int i = 0; i < 32; ++i) {
      for (int step : {1, 7, 10, 12, 14, 16, 18}) codes[i] += i >= step ? 1 : 0;
    }
  }
};
inline constexpr E2M1Quarters kE2M1Quarters;

struct E2M1 : SmallFloat<NibbleCodes, 1, 127, 0x40c00000u, 2, false> {
  /// As SmallFloat's. Half of all codes are subnormal here, so they come from a table.
  template <class Int>
  [[gnu::always_inline]] static Int word_bias(Int byte) {
    // 0.25 is 0x1f: the table begins a quarter of a binade below, less one for ties.
    return Int::template shift_left<7>(byte - Int::set(2)) - Int::set(0x1f);
  }
  template <class Words>
  [[gnu::always_inline]] static void encode_four(uint8_t* codes, const Words (&x)[4],
                                                 const Words (&bias)[4]) {
    const Words table = Words::load(kE2M1Quarters.codes);
    Words rounded[4];
    for (int j = 0; j < 4; ++j) {
      const Words raised = Words::subtract_to_zero(x[j] & Words::set(0x7fff), bias[j]);
      // Ties in the upper half of a binade go up.
      const Words upper = Words::template shift_right<6>(x[j]) & Words::set(1);
      rounded[j] = Words::lookup(table, Words::template shift_right<5>(raised + upper));
    }
    Words::store_nibbles(codes, rounded, x);
  }
};

/// HIFLOAT8: nearest code, ties to the larger magnitude. Zero has no sign.
struct HiFloat8 : ByteCodes {
  /// x is not NaN.
  template <class V>
  [[gnu::always_inline]] static typename V::Int encode(V x) {
    using Int = typename V::Int;
    const Int magnitude = V::bits(V::min(V::abs(x), V::set(0x1p15f)));
    const Int raised = Int::max(magnitude, Int::set(0x34800000));  // 2^-22, the smallest code
    const Int before = size_of_exponent<Int>(raised);
    // Half of the last kept bit: 3, 2 or 1 bits of mantissa, none below 2^-15.
    Int half = Int::select_less(before, Int::set(16), Int::set(0x200000), Int::set(0x400000));
    half = Int::select_less(before, Int::set(8), Int::set(0x100000), half);
    half = Int::select_less(before, Int::set(4), Int::set(0x080000), half);
    const Int rounded = raised + half;
    const Int exponent = Int::template shift_right<23>(rounded) - Int::set(127);
    const Int size = size_of_exponent<Int>(rounded);
    const Int negative = Int::select_less(exponent, Int::set(0), Int::set(16), Int::set(0));
    const Int three = Int::template shift_right<20>(rounded) & Int::set(7);
    Int code = exponent + Int::set(23);
    code = Int::select_less(size, Int::set(16),
                            Int::set(96) + negative + Int::template shift_left<1>(size - Int::set(8)) +
                                Int::template shift_right<2>(three),
                            code);
    code = Int::select_less(size, Int::set(8),
                            Int::set(64) + negative + Int::template shift_left<2>(size - Int::set(4)) +
                                Int::template shift_right<1>(three),
                            code);
    code = Int::select_less(size, Int::set(4),
                            Int::set(32) + negative + Int::template shift_left<3>(size - Int::set(2)) + three,
                            code);
    code = Int::select_less(size, Int::set(2), Int::set(16) + Int::template shift_right<1>(negative) + three,
                            code);
    code = Int::select_less(size, Int::set(1), Int::set(8) + three, code);
    code = code | (Int::template shift_right<24>(V::bits(x)) & Int::set(0x80));
    return Int::select_less(magnitude, Int::set(0x34000000), Int::set(0),
                            code);  // below 2^-23
  }

 private:
  template <class Int>
  [[gnu::always_inline]] static Int size_of_exponent(Int bits) {
    const Int exponent = Int::template shift_right<23>(bits) - Int::set(127);
    return Int::max(exponent, Int::set(0) - exponent);
  }
};

/// Columns [begin, end) of a row become code 0. `begin` is even.
template <class V, class Code>
[[gnu::always_inline]] inline void clear_codes(void* row, int64_t begin, int64_t end) {
  uint8_t* const codes = static_cast<uint8_t*>(row);
  for (int64_t i = begin * Code::kBits / 8; i < end * Code::kBits / 8; ++i) codes[i] = 0;
}

}  // namespace megamoe::quant
