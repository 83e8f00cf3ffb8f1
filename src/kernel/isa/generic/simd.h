// The float vector type of the generic level: one lane, plain C++. Every level's simd.h offers the same
// functions.
#pragma once

#include <cstdint>

#include "format/bf16.h"

namespace megamoe::isa_generic {

struct F32 {
  static constexpr int kLanes = 1;
  float v;

  static F32 set(float x) { return {x}; }
  static F32 load(const float* p) { return {*p}; }
  static F32 load(const uint16_t* p) { return {format::bf16_to_float(*p)}; }
  static F32 load_converted(const int32_t* p) { return {static_cast<float>(*p)}; }
  static void store(float* p, F32 x) { *p = x.v; }
  static void store(uint16_t* p, F32 x) { *p = format::bf16_from_float(x.v); }
  /// Nearest integer, ties to even; x must lie in [-128, 127].
  static void store(int8_t* p, F32 x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
    *p = static_cast<int8_t>((x.v + kRound) - kRound);
  }
  // The first `count` lanes only; lanes that are not loaded are 0. With one lane there is never a part.
  static F32 load(const float* p, int) { return load(p); }
  static F32 load(const uint16_t* p, int) { return load(p); }
  static void store(float* p, F32 x, int) { store(p, x); }
  static void store(uint16_t* p, F32 x, int) { store(p, x); }
  static void store(int8_t* p, F32 x, int) { store(p, x); }

  /// a * b + c; fused where the hardware fuses, rounded twice here.
  static F32 fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
  static F32 negate(F32 a) { return {-a.v}; }
  static F32 abs(F32 a) { return {__builtin_fabsf(a.v)}; }
  /// The second operand when either is NaN.
  static F32 min(F32 a, F32 b) { return a.v < b.v ? a : b; }
  static F32 max(F32 a, F32 b) { return a.v > b.v ? a : b; }
  static F32 zero_if_nan(F32 a) { return {a.v == a.v ? a.v : 0.0f}; }
  /// a < b ? x : y
  static F32 select_less(F32 a, F32 b, F32 x, F32 y) { return a.v < b.v ? x : y; }
  static F32 round_to_bf16(F32 a) { return {format::bf16_to_float(format::bf16_from_float(a.v))}; }
  /// a * 2^n for an integer n in [-126, 130] and a in [0.5, 2]; NaN if n is.
  static F32 scale_exponent(F32 a, F32 n) {
    // Two factors, since 2^128 and more lie outside the range. NaN makes a NaN in `a` as
    // well.
    const int exponent = n.v == n.v ? static_cast<int>(n.v) : 0;
    const int half = exponent >> 1;
    return {a.v * power_of_two(half) * power_of_two(exponent - half)};
  }
  static float max_lanes(F32 a) { return a.v; }

  friend F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
  friend F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
  friend F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
  friend F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }

 private:
  static float power_of_two(int n) { return __builtin_bit_cast(float, static_cast<uint32_t>(n + 127) << 23); }
};

}  // namespace megamoe::isa_generic
