// 4-bit codes to strips of bfloat16 by byte shuffles: the values of kernel/decode.h and
// kernel/decode_groups.h, eight k of as many columns as a float vector V has, at a time. Bytes is what a
// level has of its instructions on bytes, see decode_bytes.h.
#pragma once

#include <algorithm>

#include "kernel/decode.h"
#include "kernel/decode_groups.h"

namespace megamoe::isa_avx2 {

/// The upper and the lower byte of values as bfloat16. Bytes keeps the copies of the levels apart.
template <class Bytes>
struct NibbleTables {
  /// The exponent by which E2M1 is raised, so that every scale is a subtraction, which stops at zero.
  static constexpr int kRaised = 126;

  // Two k of four columns, then the other two: unpacking makes dwords of the columns.
  alignas(16) static constexpr int8_t kOrder[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
  alignas(16) static constexpr int8_t kOfColumn[16] = {0, 0, 4, 4, 8, 8, 12, 12, 0, 0, 4, 4, 8, 8, 12, 12};
  // Of E2M1 times 2^kRaised, then negative ones; of 0 to 15.
  alignas(16) static constexpr int8_t kE2M1High[16] = {0, 0x7e,  0x7e,  0x7e,  0x7f,  0x7f,  0x7f,  0x7f,
                                                       0, -0x02, -0x02, -0x02, -0x01, -0x01, -0x01, -0x01};
  alignas(16) static constexpr int8_t kE2M1Low[16] = {0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40,
                                                      0, 0, -0x80, -0x40, 0, 0x40, -0x80, -0x40};
  alignas(16) static constexpr int8_t kIntHigh[16] = {0,    0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
                                                      0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41};
  alignas(16) static constexpr int8_t kIntLow[16] = {0,    -0x80, 0,    0x40, -0x80, -0x60, -0x40, -0x20,
                                                     0x00, 0x10,  0x20, 0x30, 0x40,  0x50,  0x60,  0x70};
};

/// Four dwords of pairs of k of each column from a dword of codes: bytes(nibbles, high, low) makes the bytes
/// of their bfloat16 values.
template <class Bytes, class ToBytes>
[[gnu::always_inline]] inline void nibble_pairs(const uint8_t* codes, typename Bytes::Vector (&pairs)[4],
                                                ToBytes bytes) {
  using Vector = typename Bytes::Vector;
  const Vector both = Bytes::shuffle(Bytes::load(codes), Bytes::table(NibbleTables<Bytes>::kOrder));
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Vector high, low;
    bytes(half == 0 ? Bytes::low_nibbles(both) : Bytes::high_nibbles(both), high, low);
    Bytes::unpack_bytes(low, high, pairs[2 * half], pairs[2 * half + 1]);
  }
}

template <class V, class Bytes>
void decode_e2m1(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  using Int = typename V::Int;
  using Vector = typename Bytes::Vector;
  using Tables = NibbleTables<Bytes>;
  constexpr int64_t kLine = kPanelColumns * 4;  // eight k
  constexpr int64_t kGroupBytes = kPanelColumns + kernel::kMxGroup / 8 * kLine;
  constexpr int kFirst = 2, kLast = 252;  // scales under which all values are normal numbers
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * kGroupBytes;
  auto* strip = static_cast<uint32_t*>(d.strip);
  const Vector high = Bytes::table(Tables::kE2M1High), low = Bytes::table(Tables::kE2M1Low);
  for (int64_t k = 0; k < d.k; k += kernel::kMxGroup, group += kGroupBytes) {
    const int64_t pairs = (std::min<int64_t>(kernel::kMxGroup, d.k - k) + 1) / 2;
    if (!Bytes::within(group, kFirst, kLast)) {
      kernel::DecodePanel part = d;
      part.k_begin = d.k_begin + k;
      part.k = std::min<int64_t>(kernel::kMxGroup, d.k - k);
      part.strip = strip;
      kernel::decode_mx<V, quant::E2M1>(part);
      strip += pairs * kPanelColumns;
      continue;
    }
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      const Int word =
          Int::template shift_left<7>(Int::set(127 + Tables::kRaised) - Int::load(group + column));
      const Vector change = (word | Int::template shift_left<16>(word)).v;
      const uint8_t* codes = group + kPanelColumns + column * 4;
      uint32_t* out = strip + column;
      for (int64_t left = pairs; left > 0; left -= 4, codes += kLine, out += 4 * kPanelColumns) {
        Vector decoded[4];
        nibble_pairs<Bytes>(codes, decoded, [&](Vector nibbles, Vector& upper, Vector& lower) {
          upper = Bytes::shuffle(high, nibbles);
          lower = Bytes::shuffle(low, nibbles);
        });
        for (int64_t i = 0; i < 4 && i < left; ++i) {
          Bytes::store(out + i * kPanelColumns, Bytes::subtract_to_zero(decoded[i], change));
        }
      }
    }
    strip += pairs * kPanelColumns;
  }
}

/// int4 with scales of groups: codes less 8 and their zero point.
template <class V, class Bytes>
void decode_int4_groups(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  using Int = typename V::Int;
  using Vector = typename Bytes::Vector;
  using Tables = NibbleTables<Bytes>;
  constexpr int64_t kLine = kPanelColumns * 4;  // eight k
  const Vector high = Bytes::table(Tables::kIntHigh), low = Bytes::table(Tables::kIntLow);
  const uint8_t* group = kernel::first_group<V>(d, 4);
  auto* strip = static_cast<uint32_t*>(d.strip);
  float* scales = d.scales;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group) {
    const int64_t k = std::min(d.form.group, d.k - begin), pairs = (k + 1) / 2;
    const uint8_t* const codes = group + d.form.header_bytes();
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      V::store(scales + column, kernel::group_scale<V>(d.form, group, column));
      const Int offset = kernel::int4_offset<V>(d.form, group, column);
      const Vector offsets = Bytes::shuffle(offset.v, Bytes::table(Tables::kOfColumn));
      // Differences of more than four bits and a sign are not in the tables.
      const bool wide = Int::any_less(offset, Int::set(0)) || Int::any_less(Int::set(15), offset);
      const uint8_t* from = codes + column * 4;
      uint32_t* out = strip + column;
      for (int64_t left = pairs; left > 0; left -= 4, from += kLine, out += 4 * kPanelColumns) {
        if (wide) {
          kernel::nibbles_to_bf16<V>(V::bits(V::load(reinterpret_cast<const float*>(from))),
                                     std::min<int64_t>(left, 4), reinterpret_cast<float*>(out),
                                     [&](Int code) { return V::from_int(code - offset); });
          continue;
        }
        Vector decoded[4];
        nibble_pairs<Bytes>(from, decoded, [&](Vector nibbles, Vector& upper, Vector& lower) {
          const Vector difference = Bytes::difference(nibbles, offsets);
          const Vector magnitude = Bytes::magnitude(difference);
          upper = Bytes::either(Bytes::shuffle(high, magnitude), Bytes::both(difference, Bytes::splat(0x80)));
          lower = Bytes::shuffle(low, magnitude);
        });
        for (int64_t i = 0; i < 4 && i < left; ++i) Bytes::store(out + i * kPanelColumns, decoded[i]);
      }
    }
    scales += kPanelColumns;
    strip += pairs * kPanelColumns;
    group = codes + (k + 7) / 8 * kLine;
  }
}

}  // namespace megamoe::isa_avx2
