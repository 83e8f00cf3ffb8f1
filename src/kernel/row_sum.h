// Sums, products and streaming copies of whole rows over any float vector type V.
#pragma once

#include <cstdint>
#include <cstring>

#include "format/float16.h"
#include "kernel/contract.h"

namespace megamoe::kernel {

/// Nearest float16, ties to even, in the low half of each lane; overflow to infinity, NaN stays NaN.
template <class V>
typename V::Int half_bits(V x) {
  using Int = typename V::Int;
  const Int magnitude = V::bits(V::abs(x));
  const Int odd = Int::template shift_right<13>(magnitude) & Int::set(1);
  // The exponent moves from bias 127 to 15 while just under half of the last kept bit is added.
  const Int normal =
      Int::template shift_right<13>(magnitude + odd + Int::set(static_cast<int32_t>(0xc8000fff)));
  // Adding 0.5 leaves multiples of 2^-24, the subnormal step, in the low bits.
  const V raised = V::from_bits(magnitude) + V::set(0.5f);
  const Int subnormal = V::bits(raised) - Int::set(0x3f000000);
  const Int special = Int::select_less(Int::set(0x7f800000), magnitude, Int::set(0x7e00), Int::set(0x7c00));
  Int half = Int::select_less(magnitude, Int::set(0x38800000), subnormal, normal);  // 2^-14
  half = Int::select_less(magnitude, Int::set(0x47800000), half, special);          // 2^16
  return half | (Int::template shift_right<16>(V::bits(x)) & Int::set(0x8000));
}

/// Rounded once to the type of the row: bfloat16 as uint16_t. `count` lanes.
template <class V, class T>
void store_rounded(T* p, V x, int count) {
  count == V::kLanes ? V::store(p, x) : V::store(p, x, count);
}
template <class V>
void store_rounded(format::Float16* p, V x, int count) {
  // The bits stand in the upper half of a float, where the store for bfloat16 takes them from unchanged.
  const V placed = V::from_bits(V::Int::template shift_left<16>(half_bits(x)));
  store_rounded(&p->bits, placed, count);
}

template <class V, class T>
V load_lanes(const T* p, int count) {
  return count == V::kLanes ? V::load(p) : V::load(p, count);
}

/// `kVectors` neighbouring vectors from `column` on; `count` lanes of the last one.
template <class V, class T, int kVectors>
void sum_columns(const RowSum& r, int64_t column, int count) {
  const auto add = [&](V(&sum)[kVectors], int slot, bool first) {
    const T* const row = static_cast<const T*>(r.rows[slot]) + column;
    const V weight = V::set(r.weights != nullptr ? r.weights[slot] : 1.0f);
    for (int j = 0; j < kVectors; ++j) {
      V term = load_lanes<V>(row + j * V::kLanes, count);
      if (r.weights != nullptr) term = term * weight;
      sum[j] = first ? term : sum[j] + term;
    }
  };
  V sum[kVectors];
  for (int j = 0; j < kVectors; ++j) sum[j] = V::set(0);
  for (int slot = 0; slot < r.count; ++slot) add(sum, slot, slot == 0 && !r.from_zero);
  T* const out = static_cast<T*>(r.out) + column;
  for (int j = 0; j < kVectors; ++j) store_rounded(out + j * V::kLanes, sum[j], count);
}

template <class V, class T>
void sum_rows(const RowSum& r) {
  int64_t column = 0;
  for (; column + 4 * V::kLanes <= r.n; column += 4 * V::kLanes) sum_columns<V, T, 4>(r, column, V::kLanes);
  for (; column + V::kLanes <= r.n; column += V::kLanes) sum_columns<V, T, 1>(r, column, V::kLanes);
  if (column < r.n) sum_columns<V, T, 1>(r, column, static_cast<int>(r.n - column));
}

template <class V, class T>
float dot(const void* a, const void* b, int64_t n) {
  const T* const x = static_cast<const T*>(a);
  const T* const y = static_cast<const T*>(b);
  V sum[4] = {V::set(0), V::set(0), V::set(0), V::set(0)};
  int64_t i = 0;
  for (; i + 4 * V::kLanes <= n; i += 4 * V::kLanes) {
    for (int j = 0; j < 4; ++j) {
      sum[j] = V::fma(V::load(x + i + j * V::kLanes), V::load(y + i + j * V::kLanes), sum[j]);
    }
  }
  for (; i + V::kLanes <= n; i += V::kLanes) sum[0] = V::fma(V::load(x + i), V::load(y + i), sum[0]);
  if (i < n) {
    const int count = static_cast<int>(n - i);
    sum[1] = V::fma(V::load(x + i, count), V::load(y + i, count), sum[1]);
  }
  float lanes[V::kLanes];
  V::store(lanes, (sum[0] + sum[1]) + (sum[2] + sum[3]));
  float total = 0;
  for (float lane : lanes) total += lane;
  return total;
}

template <class V>
void stream_row(void* out, const void* in, int64_t bytes) {
  constexpr int64_t kLine = 64;
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  const int64_t head = -reinterpret_cast<intptr_t>(out) & (kLine - 1);
  if (head >= bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t i = head;
  for (; i + kLine <= bytes; i += kLine) V::stream_line(to + i, from + i);
  std::memcpy(to + i, from + i, static_cast<size_t>(bytes - i));
}

}  // namespace megamoe::kernel
