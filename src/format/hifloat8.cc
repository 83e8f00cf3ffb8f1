// HIFLOAT8: the table of values and the search for the nearest code.
#include "format/hifloat8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace megamoe::format {
namespace {

constexpr uint8_t kNan = 0x80;
constexpr uint8_t kInfinity = 0x6f;
constexpr uint8_t kLargest = 0x6e;

constexpr float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

/// A finite value from its exponent bits: sign first, then those below the implicit leading one.
constexpr float value(int payload, int exponent_bits, int mantissa_bits) {
  const int mantissa = payload & ((1 << mantissa_bits) - 1);
  const int below_leading = payload >> mantissa_bits & ((1 << (exponent_bits - 1)) - 1);
  const int magnitude = 1 << (exponent_bits - 1) | below_leading;
  const bool negative = payload >> (mantissa_bits + exponent_bits - 1) & 1;
  const float fraction = 1.0f + static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  return power_of_two(negative ? -magnitude : magnitude) * fraction;
}

constexpr float magnitude(int payload) {
  if (payload == kInfinity) return std::numeric_limits<float>::infinity();
  if (payload == 0) return 0.0f;
  if (payload < 0x08) return power_of_two(payload - 23);
  if (payload < 0x10) return 1.0f + static_cast<float>(payload & 7) / 8.0f;
  if (payload < 0x20) return value(payload, 1, 3);
  if (payload < 0x40) return value(payload, 2, 3);
  if (payload < 0x60) return value(payload, 3, 2);
  return value(payload, 4, 1);
}

constexpr HiFloat8Values make_values() {
  HiFloat8Values values{};
  for (int payload = 0; payload < 128; ++payload) {
    values.of[payload] = magnitude(payload);
    values.of[payload | 0x80] = -magnitude(payload);
  }
  values.of[kNan] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

}  // namespace

constinit const HiFloat8Values kHiFloat8Values = make_values();

uint8_t hif8_from_float(float x, bool saturate) {
  if (std::isnan(x)) return saturate ? 0 : kNan;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float size = std::fabs(x);
  if (size < 0x1p-23f) return 0;
  if (size >= 0x1.4p15f) return sign | (saturate ? kLargest : kInfinity);
  // Mantissa bits of the binade; none below 2^-15, and the smallest code stands for the binade below it too.
  int exponent = std::max(std::ilogb(size), -22);
  const int distance = std::abs(exponent);
  const int mantissa_bits = distance < 4 ? 3 : distance < 8 ? 2 : distance < 16 ? 1 : 0;
  const auto units = std::max(1LL << mantissa_bits, std::llround(std::ldexp(size, mantissa_bits - exponent)));
  const float rounded = std::ldexp(static_cast<float>(units), exponent - mantissa_bits);
  for (uint8_t code = 1; code < kInfinity; ++code) {
    if (kHiFloat8Values.of[code] == rounded) return sign | code;
  }
  // 0x70 and up are the numbers below 1 with four exponent bits.
  for (int code = kInfinity + 1; code < 128; ++code) {
    if (kHiFloat8Values.of[code] == rounded) return static_cast<uint8_t>(sign | code);
  }
  return sign | kLargest;
}

}  // namespace megamoe::format
