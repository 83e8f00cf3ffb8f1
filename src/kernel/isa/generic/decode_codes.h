// FP8 and FP4 codes to strips of bfloat16 by tables: the values of kernel/decode.h and
// kernel/decode_groups.h, with scales added to exponents. No float is multiplied, so that subnormal ones cost
// nothing.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel/decode_groups.h"
#include "kernel/isa/generic/simd.h"

namespace megamoe::isa_generic {

/// A format of sign, exponent and mantissa. kLargest is the largest code that is a number; where infinity
/// follows it, kInfinity is its code.
template <int kCodeBits, int kMantissaBits, int kExponentBias, int kLargestCode, int kInfinityCode = -1>
struct Codes {
  static constexpr int kBits = kCodeBits;
  static constexpr int kMantissa = kMantissaBits, kBias = kExponentBias;
  static constexpr int kLargest = kLargestCode, kInfinity = kInfinityCode;
  static constexpr int kTop = (kLargest >> kMantissa) - kBias;  ///< exponents of the largest number
  static constexpr int kLeast = 1 - kBias - kMantissa;          ///< and of the smallest one
};
using E4M3Codes = Codes<8, 3, 7, 0x7e>;
using E5M2Codes = Codes<8, 2, 15, 0x7b, 0x7c>;
using E2M1Codes = Codes<4, 1, 1, 7>;

/// For every code its bfloat16 bits and, in the upper half, ones where a scale changes them: not in zero,
/// infinity and NaN.
template <class Of>
struct Bf16Table {
  uint32_t entries[1 << Of::kBits];

  consteval Bf16Table() : entries() {
    for (int code = 0; code < 1 << Of::kBits; ++code) {
      const int magnitude = code % (1 << (Of::kBits - 1)), sign = code >> (Of::kBits - 1) << 15;
      entries[code] = static_cast<uint32_t>(of_magnitude(magnitude) | sign);
      if (magnitude != 0 && magnitude <= Of::kLargest) entries[code] |= 0xffff0000u;
    }
  }

 private:
  static consteval int of_magnitude(int code) {
    if (code > Of::kLargest) return code == Of::kInfinity ? 0x7f80 : 0x7fc0;
    if (code >= 1 << Of::kMantissa) return (code << (7 - Of::kMantissa)) + ((127 - Of::kBias) << 7);
    int top = 0;
    while (code >> (top + 1) != 0) ++top;
    return code == 0 ? 0 : ((127 + Of::kLeast + top) << 7) + ((code << (7 - top)) & 127);
  }
};
template <class Of>
inline constexpr Bf16Table<Of> kBf16Table;

/// Bits of an entry times 2^(byte - 127), cut where they are subnormal.
constexpr uint32_t scaled(uint32_t entry, int byte) {
  const uint32_t changes = entry >> 16, bits = entry & 0xffff;
  const int exponent = static_cast<int>(bits >> 7 & 255) + byte - 127;
  const uint32_t significand = (bits & 127) | 128;
  // What is less than a normal number loses bits below, what is more than the largest one is infinity.
  const uint32_t kept = significand >> std::clamp(1 - exponent, 0, 8);
  const uint32_t magnitude = (static_cast<uint32_t>(std::max(exponent - 1, 0)) << 7) + kept;
  const uint32_t result = (bits & 0x8000) | std::min(magnitude, 0x7f80u);
  return (bits & ~changes) | (result & changes) | (byte == 255 ? 0x7fc0 : 0);
}

/// Scale bytes under which all values of a format are normal numbers, and entries of all codes for each of
/// the others, which nothing changes any more.
template <class Of>
struct ScaledTables {
  static constexpr int kFirst = 1 - Of::kLeast, kLast = 254 - Of::kTop;
  uint32_t entries[kFirst + 255 - kLast][1 << Of::kBits];

  consteval ScaledTables() : entries() {
    for (int byte = 0; byte < 256; ++byte) {
      if (byte >= kFirst && byte <= kLast) continue;
      for (int code = 0; code < 1 << Of::kBits; ++code) {
        entries[index(byte)][code] = scaled(kBf16Table<Of>.entries[code], byte);
      }
    }
  }
  static constexpr int index(int byte) { return byte < kFirst ? byte : byte - kLast - 1 + kFirst; }
};
template <class Of>
inline constexpr ScaledTables<Of> kScaledTables;

template <class Of>
void decode_mx(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  constexpr int64_t kGroupBytes = kPanelColumns + kernel::kMxGroup * kPanelColumns * Of::kBits / 8;
  using Scaled = ScaledTables<Of>;
  const uint32_t* const table = kBf16Table<Of>.entries;
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * kGroupBytes;
  auto* strip = static_cast<uint32_t*>(d.strip);
  for (int64_t begin = 0; begin < d.k; begin += kernel::kMxGroup, group += kGroupBytes) {
    const int64_t k_end = std::min<int64_t>(kernel::kMxGroup, d.k - begin);
    const uint8_t* const codes = group + kPanelColumns;
    const auto entry = [&](const uint32_t* of, int64_t k, int column) {
      if constexpr (Of::kBits == 8) return of[codes[k * kPanelColumns + column]];
      return of[codes[(k / 8 * kPanelColumns + column) * 4 + k % 4] >> (k % 8 / 4 * 4) & 15];
    };
    uint32_t change[kPanelColumns];
    const uint32_t* tables[kPanelColumns];
    bool normal = true;
    for (int column = 0; column < kPanelColumns; ++column) {
      const int byte = group[column];
      const bool is_normal = byte >= Scaled::kFirst && byte <= Scaled::kLast;
      normal &= is_normal;
      tables[column] = is_normal ? table : kScaledTables<Of>.entries[Scaled::index(byte)];
      change[column] = static_cast<uint16_t>((byte - 127) * 128);
    }
    for (int64_t k = 0; k < k_end; k += 2, strip += kPanelColumns) {
      for (int column = 0; column < kPanelColumns; ++column) {
        const uint32_t* const of = normal ? table : tables[column];
        const uint32_t even = entry(of, k, column), odd = entry(of, k + 1, column);
        const uint32_t low = even + (even >> 16 & change[column]);
        const uint32_t high = odd + (odd >> 16 & change[column]);
        strip[column] = (low & 0xffff) | high << 16;
      }
    }
  }
}

/// E4M3 codes with scales of groups.
inline void decode_e4m3_groups(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  const uint32_t* const table = kBf16Table<E4M3Codes>.entries;
  const uint8_t* group = kernel::first_group<F32>(d, 8);
  auto* strip = static_cast<uint32_t*>(d.strip);
  float* scales = d.scales;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group, scales += kPanelColumns) {
    for (int column = 0; column < kPanelColumns; ++column) {
      scales[column] = kernel::group_scale<F32>(d.form, group, column).v;
    }
    const uint8_t* codes = group + d.form.header_bytes();
    const int64_t k_end = std::min(d.form.group, d.k - begin);
    for (int64_t k = 0; k < k_end; k += 2, codes += 2 * kPanelColumns, strip += kPanelColumns) {
      for (int column = 0; column < kPanelColumns; ++column) {
        strip[column] = (table[codes[column]] & 0xffff) | table[codes[kPanelColumns + column]] << 16;
      }
    }
    group = codes;
  }
}

}  // namespace megamoe::isa_generic
