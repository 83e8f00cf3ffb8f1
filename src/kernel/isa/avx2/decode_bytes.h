// FP8 codes to strips of bfloat16 by byte shuffles: the values of kernel/decode.h and kernel/decode_groups.h
// where they are normal numbers. Groups with other ones, or with codes that are no numbers, go by those.
//
// Bytes is what a level has of its instructions on bytes:
//   Vector                           a register
//   load(codes), store(to, vector)
//   kLoads, kVectors                 registers of codes, and of bfloat16 pairs, for two k of a panel
//   load_pair(codes, loaded)         both k of all columns
//   interleave(high, low, pairs)     the bytes of their bfloat16 values to pairs in the order of columns
//   unpack_bytes, table, splat, shuffle, low_nibbles, high_nibbles, both, either, differing,
//   difference, magnitude, subtract_to_zero, max_signed, max_unsigned, any_above, within
#pragma once

#include <algorithm>
#include <bit>

#include "kernel/decode.h"
#include "kernel/decode_groups.h"

namespace megamoe::isa_avx2 {

/// The bytes of codes of one sign, kMantissaBits and the exponent bias kBias as bfloat16 times 2^kRaised.
/// Bytes keeps the copies of the levels apart.
template <class Bytes, int kMantissaBits, int kBias, int kRaised>
struct ByteTables {
  static constexpr int kShift = 7 - kMantissaBits;
  static constexpr int kBase = (127 - kBias + kRaised) << 7;  ///< what is added to the bits of a normal code
  static_assert(kBase % 256 == 0, "the low byte of a normal code is that of its bits");

  /// By the upper nibble of a code: the upper byte, and the top bit where the code is normal.
  alignas(16) int8_t first[16];
  alignas(16) int8_t normal[16];
  /// By the lower nibble: what it adds to the upper byte, the lower byte, and by which bits both are wrong
  /// where the upper nibble is 0 or 8.
  alignas(16) int8_t above[16];
  alignas(16) int8_t low[16];
  alignas(16) int8_t high_change[16];
  alignas(16) int8_t low_change[16];

  consteval ByteTables() : first(), normal(), above(), low(), high_change(), low_change() {
    for (int i = 0; i < 16; ++i) {
      const int bits = i << kShift;
      first[i] = static_cast<int8_t>((kBase >> 8) + (i % 8 << (kShift - 4)) + (i / 8 << 7));
      normal[i] = static_cast<int8_t>(i % 8 == 0 ? 0 : 0x80);
      above[i] = static_cast<int8_t>(bits >> 8);
      low[i] = static_cast<int8_t>(bits);
      const int change = small(i) ^ (kBase + bits);
      high_change[i] = static_cast<int8_t>(change >> 8);
      low_change[i] = static_cast<int8_t>(change);
    }
  }

 private:
  /// Of a code below 16.
  static consteval int small(int code) {
    if (code >= 1 << kMantissaBits) return kBase + (code << kShift);
    if (code == 0) return 0;
    const int top = std::bit_width(static_cast<unsigned>(code)) - 1;
    return kBase + ((1 - kMantissaBits + top) << 7) + ((code << (7 - top)) & 127);
  }
};

/// kLargest is the largest code that is a number. kRaised is what makes every scale a subtraction that stops
/// at zero; values are normal under scale bytes from kFirst to kLast.
template <class Bytes>
struct E4M3Bytes {
  using Code = quant::E4M3;
  static constexpr int kMantissa = 3, kBias = 7, kLargest = 0x7e;
  static constexpr bool kHasInfinity = false;
  static constexpr int kRaised = 118, kFirst = 10, kLast = 127 + kRaised;
};
template <class Bytes>
struct E5M2Bytes {
  using Code = quant::E5M2;
  static constexpr int kMantissa = 2, kBias = 15, kLargest = 0x7b;
  static constexpr bool kHasInfinity = true;
  static constexpr int kRaised = 112, kFirst = 17, kLast = 127 + kRaised;
};

/// kChecked: codes that are no numbers may be among them.
template <class Bytes, class Format, int kRaised, bool kChecked>
class ByteDecoder {
  using Vector = typename Bytes::Vector;
  using Tables = ByteTables<Bytes, Format::kMantissa, Format::kBias, kRaised>;
  static constexpr Tables kTables{};

 public:
  ByteDecoder()
      : first_(Bytes::table(kTables.first)),
        normal_(Bytes::table(kTables.normal)),
        above_(Bytes::table(kTables.above)),
        low_(Bytes::table(kTables.low)),
        high_change_(Bytes::table(kTables.high_change)),
        low_change_(Bytes::table(kTables.low_change)) {}

  /// Two k of all columns as bfloat16 pairs.
  [[gnu::always_inline]] void pairs(const uint8_t* codes, Vector (&pairs)[Bytes::kVectors]) {
    Vector loaded[Bytes::kLoads], high[Bytes::kLoads], low[Bytes::kLoads];
    Bytes::load_pair(codes, loaded);
    for (int i = 0; i < Bytes::kLoads; ++i) {
      if constexpr (kChecked) {
        most_positive_ = Bytes::max_signed(most_positive_, loaded[i]);
        most_negative_ = Bytes::max_unsigned(most_negative_, loaded[i]);
      }
      const Vector lower = Bytes::low_nibbles(loaded[i]), upper = Bytes::high_nibbles(loaded[i]);
      const Vector change = Bytes::either(lower, Bytes::shuffle(normal_, upper));
      high[i] = Bytes::shuffle(first_, upper);
      if constexpr (Tables::kShift > 4) high[i] = Bytes::either(high[i], Bytes::shuffle(above_, lower));
      high[i] = Bytes::differing(high[i], Bytes::shuffle(high_change_, change));
      low[i] = Bytes::differing(Bytes::shuffle(low_, lower), Bytes::shuffle(low_change_, change));
    }
    Bytes::interleave(high, low, pairs);
  }
  /// Whether some code since the last call was no number.
  [[gnu::always_inline]] bool not_numbers() {
    if constexpr (!kChecked) return false;
    const bool any = Bytes::any_above(most_positive_, Format::kLargest) ||
                     Bytes::any_above(most_negative_, Format::kLargest + 0x80);
    most_positive_ = most_negative_ = Bytes::splat(0);
    return any;
  }

 private:
  Vector first_, normal_, above_, low_, high_change_, low_change_;
  Vector most_positive_ = Bytes::splat(0), most_negative_ = Bytes::splat(0);
};

/// MX codes to bfloat16 pairs; V is the float vector type of the level. There is no -0, from which nothing
/// could be subtracted, and NaN of E4M3 has the scale NaN.
template <class V, class Bytes, template <class> class Of>
void decode_mx_bytes(const kernel::DecodePanel& d) {
  using kernel::kMxGroup;
  using kernel::kPanelColumns;
  using Format = Of<Bytes>;
  using Int = typename V::Int;
  constexpr int64_t kGroupBytes = kPanelColumns * (1 + kMxGroup);
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kMxGroup * kGroupBytes;
  auto* strip = static_cast<uint32_t*>(d.strip);
  ByteDecoder<Bytes, Format, Format::kRaised, Format::kHasInfinity> decoder;
  for (int64_t k = 0; k < d.k; k += kMxGroup, group += kGroupBytes) {
    const int64_t pairs = (std::min<int64_t>(kMxGroup, d.k - k) + 1) / 2;
    typename Bytes::Vector change[Bytes::kVectors];
    const bool normal = Bytes::within(group, Format::kFirst, Format::kLast);
    for (int j = 0; j < Bytes::kVectors; ++j) {
      const Int word =
          Int::template shift_left<7>(Int::set(Format::kLast) - Int::load(group + j * V::kLanes));
      change[j] = (word | Int::template shift_left<16>(word)).v;
    }
    if (normal) [[likely]] {
      const uint8_t* codes = group + kPanelColumns;
      for (int64_t pair = 0; pair < pairs; ++pair, codes += 2 * kPanelColumns) {
        typename Bytes::Vector values[Bytes::kVectors];
        decoder.pairs(codes, values);
        for (int j = 0; j < Bytes::kVectors; ++j) {
          Bytes::store(strip + pair * kPanelColumns + j * V::kLanes,
                       Bytes::subtract_to_zero(values[j], change[j]));
        }
      }
    }
    if (decoder.not_numbers() || !normal) [[unlikely]] {
      kernel::DecodePanel part = d;
      part.k_begin = d.k_begin + k;
      part.k = std::min<int64_t>(kMxGroup, d.k - k);
      part.strip = strip;
      kernel::decode_mx<V, typename Format::Code>(part);
    }
    strip += pairs * kPanelColumns;
  }
}

/// E4M3 codes with scales of groups: values without their scales.
template <class V, class Bytes>
void decode_e4m3_bytes(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  using Format = E4M3Bytes<Bytes>;
  const uint8_t* group = kernel::first_group<V>(d, 8);
  auto* strip = static_cast<uint32_t*>(d.strip);
  float* scales = d.scales;
  ByteDecoder<Bytes, Format, 0, true> decoder;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group) {
    const int64_t pairs = (std::min(d.form.group, d.k - begin) + 1) / 2;
    const uint8_t* codes = group + d.form.header_bytes();
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      V::store(scales + column, kernel::group_scale<V>(d.form, group, column));
    }
    for (int64_t pair = 0; pair < pairs; ++pair, codes += 2 * kPanelColumns) {
      typename Bytes::Vector values[Bytes::kVectors];
      decoder.pairs(codes, values);
      for (int j = 0; j < Bytes::kVectors; ++j) {
        Bytes::store(strip + pair * kPanelColumns + j * V::kLanes, values[j]);
      }
    }
    if (decoder.not_numbers()) [[unlikely]] {
      kernel::DecodePanel part = d;
      part.k_begin = d.k_begin + begin;
      part.k = std::min(d.form.group, d.k - begin);
      part.strip = strip;
      part.scales = scales;
      kernel::decode_e4m3_groups<V>(part);
    }
    scales += kPanelColumns;
    strip += pairs * kPanelColumns;
    group = codes;
  }
}

}  // namespace megamoe::isa_avx2
