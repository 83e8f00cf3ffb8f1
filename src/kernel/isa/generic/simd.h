// The vector types of the generic level: one lane, plain C++. Every level's simd.h offers the same functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "format/bf16.h"
#include "format/float16.h"

namespace megamoe::isa_generic {

/// 32-bit integers, as many as F32 has lanes.
struct I32 {
  int32_t v;

  static I32 set(int32_t x) { return {x}; }
  /// The low byte of every lane.
  static void store(uint8_t* p, I32 x) { *p = static_cast<uint8_t>(x.v); }
  static void store(uint8_t* p, I32 x, int) { store(p, x); }
  /// Codes of two vectors, even columns and odd ones, to one byte each.
  static void store_byte_pairs(uint8_t* p, I32 even, I32 odd) {
    store(p, even);
    store(p + 1, odd);
  }
  /// The same to half a byte each.
  static void store_nibble_pairs(uint8_t* p, I32 even, I32 odd) {
    *p = static_cast<uint8_t>(even.v | odd.v << 4);
  }
  static I32 load(const uint8_t* p) { return {*p}; }
  static I32 load(const uint8_t* p, int) { return load(p); }
  /// The low four bits of every lane as elements i, i + 1, ... of a row of nibbles, low half first. i is a
  /// multiple of the lanes, and of a part an even number is stored.
  static void store_nibbles(uint8_t* row, int64_t i, I32 x) {
    uint8_t* const p = row + i / 2;
    *p = static_cast<uint8_t>(i % 2 == 0 ? x.v : *p | x.v << 4);
  }
  static void store_nibbles(uint8_t* row, int64_t i, I32 x, int) { store_nibbles(row, i, x); }
  static I32 load_nibbles(const uint8_t* row, int64_t i) { return {row[i / 2] >> (i % 2 * 4) & 15}; }
  static I32 load_nibbles(const uint8_t* row, int64_t i, int) { return load_nibbles(row, i); }

  static I32 max(I32 a, I32 b) { return a.v > b.v ? a : b; }
  /// Lane g is the largest lane of a[g].
  static I32 max_each(const I32 (&a)[1]) { return a[0]; }
  /// Whether a < b in any lane.
  static bool any_less(I32 a, I32 b) { return a.v < b.v; }
  static int32_t max_lanes(I32 a) { return a.v; }
  /// a < b ? x : y
  static I32 select_less(I32 a, I32 b, I32 x, I32 y) { return a.v < b.v ? x : y; }
  /// Bits of a where the mask has ones, of b elsewhere.
  static I32 merge(I32 mask, I32 a, I32 b) { return {(a.v & mask.v) | (b.v & ~mask.v)}; }
  template <int kBits>
  static I32 shift_left(I32 a) {
    return {static_cast<int32_t>(static_cast<uint32_t>(a.v) << kBits)};
  }
  /// Zeros come in from above.
  template <int kBits>
  static I32 shift_right(I32 a) {
    return {static_cast<int32_t>(static_cast<uint32_t>(a.v) >> kBits)};
  }
  friend I32 operator+(I32 a, I32 b) {
    return {static_cast<int32_t>(static_cast<uint32_t>(a.v) + static_cast<uint32_t>(b.v))};
  }
  friend I32 operator-(I32 a, I32 b) {
    return {static_cast<int32_t>(static_cast<uint32_t>(a.v) - static_cast<uint32_t>(b.v))};
  }
  friend I32 operator&(I32 a, I32 b) { return {a.v & b.v}; }
  friend I32 operator|(I32 a, I32 b) { return {a.v | b.v}; }
};

struct F32 {
  using Int = I32;
  static constexpr int kLanes = 1;
  float v;

  static F32 set(float x) { return {x}; }
  static F32 load(const float* p) { return {*p}; }
  static F32 load(const uint16_t* p) { return {format::bf16_to_float(*p)}; }
  struct Pair;
  /// Twice as many bfloat16 values as lanes: even columns and odd ones.
  static Pair load_pairs(const uint16_t* p);
  static F32 load(const format::Float16* p) { return {format::f16_to_float(p->bits)}; }
  static F32 load_converted(const float* p) { return load(p); }
  static F32 load_converted(const int32_t* p) { return {static_cast<float>(*p)}; }
  static void store(float* p, F32 x) { *p = x.v; }
  static void store(uint16_t* p, F32 x) { *p = format::bf16_from_float(x.v); }
  /// Two vectors one after the other; the second form goes past the caches where the level can, to an address
  /// that is a multiple of their bytes.
  static void store(uint16_t* p, const F32 (&x)[2]) {
    store(p, x[0]);
    store(p + kLanes, x[1]);
  }
  static void stream(uint16_t* p, const F32 (&x)[2]) { store(p, x); }
  /// Nearest integer, ties to even; x must lie in [-128, 127].
  static void store(int8_t* p, F32 x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
    *p = static_cast<int8_t>((x.v + kRound) - kRound);
  }
  /// The same for what load_pairs loaded, in the order of the columns.
  static void store_pairs(int8_t* p, F32 even, F32 odd) {
    store(p, even);
    store(p + 1, odd);
  }
  // The first `count` lanes only; lanes that are not loaded are 0. With one lane there is never a part.
  static F32 load(const float* p, int) { return load(p); }
  static F32 load(const uint16_t* p, int) { return load(p); }
  static F32 load(const format::Float16* p, int) { return load(p); }
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
    // Two factors, since 2^128 and more lie outside the range. NaN makes a NaN in `a` as well.
    const int exponent = n.v == n.v ? static_cast<int>(n.v) : 0;
    const int half = exponent >> 1;
    return {a.v * power_of_two(half) * power_of_two(exponent - half)};
  }
  static float max_lanes(F32 a) { return a.v; }
  static Int bits(F32 a) { return {__builtin_bit_cast(int32_t, a.v)}; }
  static F32 from_bits(Int a) { return {__builtin_bit_cast(float, a.v)}; }
  static F32 from_int(Int a) { return {static_cast<float>(a.v)}; }
  /// Nearest integer, ties to even; |a| is at most 2^22.
  static Int to_int(F32 a) {
    constexpr float kRound = 12582912.0f;
    return {static_cast<int32_t>((a.v + kRound) - kRound)};
  }
  static F32 lookup(const float* table, Int i) { return {table[i.v]}; }
  /// Copies 64 bytes to an address that is a multiple of 64, past the caches where the level can.
  static void stream_line(void* out, const void* in) { std::memcpy(out, in, 64); }
  /// Before other threads read what stream_line wrote.
  static void stream_end() {}

  friend F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
  friend F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
  friend F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
  friend F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }

 private:
  static float power_of_two(int n) { return __builtin_bit_cast(float, static_cast<uint32_t>(n + 127) << 23); }
};

struct F32::Pair {
  F32 even, odd;
};
inline F32::Pair F32::load_pairs(const uint16_t* p) {
  return {load(p), load(p + 1)};
}

}  // namespace megamoe::isa_generic
