// E8M0: byte b is 2^(b - 127), NaN at ff; no zero and no sign.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace megamoe::format {

inline constexpr uint8_t kE8M0Nan = 0xff;
inline constexpr uint8_t kE8M0Largest = 0xfe;

/// Byte 0 is the subnormal float 2^-127.
inline float e8m0_to_float(uint8_t code) {
  constexpr uint32_t kQuietNan = 0x7fc00000, kSubnormal = 0x00400000;
  const uint32_t exponent = uint32_t{code} << 23;
  return std::bit_cast<float>(code == kE8M0Nan ? kQuietNan : code == 0 ? kSubnormal : exponent);
}

/// Nearest power of two, ties to the even byte. Past 2^127 becomes 2^127; what is smaller than 2^-127 becomes
/// 2^-127. NaN and numbers below zero become NaN.
inline uint8_t e8m0_from_float(float value) {
  if (std::isnan(value) || value < 0) return kE8M0Nan;
  if (std::isinf(value)) return kE8M0Largest;
  const int exponent = std::max(std::ilogb(value), -127);
  const float excess = std::ldexp(value, -exponent);  // 1.5 lies half way to the next one
  const int code = exponent + 127;
  const bool up = excess > 1.5f || (excess == 1.5f && code % 2 != 0);
  return static_cast<uint8_t>(std::min(code + (up ? 1 : 0), int{kE8M0Largest}));
}

}  // namespace megamoe::format
