// What MX codes stand for, and the tables in which decode.h looks up those of a byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernel/contract.h"

namespace megamoe::isa_avx512_bf16 {

/// bfloat16 bits of every magnitude of a code format.
template <int kMantissa, int kBias, int kCodes, bool kSpecialTop>
consteval std::array<uint16_t, kCodes> code_magnitudes() {
  std::array<uint16_t, kCodes> table{};
  for (int code = 1; code < kCodes; ++code) {
    int exponent = code >> kMantissa, mantissa = code & ((1 << kMantissa) - 1);
    if (exponent == 0) {
      exponent = 1;
      while ((mantissa >> kMantissa) == 0) {
        mantissa *= 2;
        --exponent;
      }
      mantissa &= (1 << kMantissa) - 1;
    }
    table[static_cast<size_t>(code)] =
        static_cast<uint16_t>((exponent - kBias + 127) << 7 | mantissa << (7 - kMantissa));
  }
  if constexpr (kSpecialTop && kMantissa == 3) table[kCodes - 1] = 0x7fc0;  // E4M3: one NaN, no infinity
  if constexpr (kSpecialTop && kMantissa == 2) {                            // E5M2: infinity, three NaN
    table[kCodes - 4] = 0x7f80;
    for (int i = 1; i < 4; ++i) table[static_cast<size_t>(kCodes - i)] = 0x7fc0;
  }
  return table;
}

template <int kRaised>
consteval std::array<uint16_t, 128> raised(std::array<uint16_t, 128> table) {
  for (uint16_t& bits : table) bits = bits == 0 ? uint16_t{0} : static_cast<uint16_t>(bits + kRaised * 128);
  return table;
}

/// A format whose values reach from 2^kLowest to below 2^(kHighest + 1). Tables hold them raised by
/// 2^kRaised, so that every scale is a subtraction: one that stops at zero leaves zeros alone, and stored
/// panels have no -0. Raised infinities and NaN would become numbers: E4M3 has them under the scale NaN
/// alone. With kRaised 0 bit 0, which no value needs, marks what a scale is added to: neither zero nor
/// infinity nor NaN.
struct E4M3Codes {
  static constexpr auto kCode = kernel::WeightCode::kE4M3;
  static constexpr int kBits = 8, kLowest = -9, kHighest = 8, kRaised = 119;
  static constexpr auto kMagnitudes = raised<kRaised>(code_magnitudes<3, 7, 128, false>());
};
/// As they are: for products that scale sums.
struct PlainE4M3Codes {
  static constexpr auto kMagnitudes = code_magnitudes<3, 7, 128, true>();
  static constexpr int kBits = 8;
};
struct E5M2Codes {
  static constexpr auto kCode = kernel::WeightCode::kE5M2;
  static constexpr int kBits = 8, kLowest = -16, kHighest = 15, kRaised = 0;
  static constexpr auto kMagnitudes = [] {
    auto table = code_magnitudes<2, 15, 128, true>();
    for (uint16_t& bits : table) bits |= bits != 0 && bits < 0x7f80 ? 1 : 0;
    return table;
  }();
};
/// The same where a group has neither infinities nor NaN.
struct FiniteE5M2Codes {
  static constexpr int kBits = 8, kLowest = -16, kHighest = 15, kRaised = 112;
  static constexpr auto kMagnitudes = raised<kRaised>(code_magnitudes<2, 15, 128, false>());
};
struct E2M1Codes {
  static constexpr auto kCode = kernel::WeightCode::kE2M1;
  static constexpr auto kMagnitudes = code_magnitudes<1, 1, 8, false>();
  static constexpr int kBits = 4, kLowest = -1, kHighest = 2, kRaised = 126;
};

/// What stands in a table beyond the bits of a value under the scale 2^-127.
template <class Codes>
inline constexpr int kExcess = Codes::kRaised == 0 ? 127 * 128 + 1 : (127 + Codes::kRaised) * 128;

/// What the look-ups read, in registers while a panel is decoded.
struct alignas(64) ByteTables {
  uint8_t low[2][64], high[2][64];  ///< the two bytes of a value, by magnitude
  uint8_t order[64];

  template <class Codes>
  static consteval ByteTables of() {
    ByteTables tables{};
    for (size_t i = 0; i < 128; ++i) {
      tables.low[i / 64][i % 64] = static_cast<uint8_t>(Codes::kMagnitudes[i]);
      tables.high[i / 64][i % 64] = static_cast<uint8_t>(Codes::kMagnitudes[i] >> 8);
    }
    // Unpacking takes 8 bytes of each 16: 4 columns of the first half, then 4 of the second half.
    for (size_t i = 0; i < 64; ++i) {
      const size_t column = i / 16 * 4 + i % 8 / 2 + i % 16 / 8 * 16;
      tables.order[i] = static_cast<uint8_t>(column + i % 2 * kernel::kPanelColumns);
    }
    return tables;
  }
};

// Not constexpr: g++ would put copies for the assembly below on the stack.
template <class Codes>
inline constinit const ByteTables kByteTables = ByteTables::of<Codes>();

}  // namespace megamoe::isa_avx512_bf16
