// Combine of one token over any float vector type V: slots in order, multiply then add, one rounding at the
// end; and conversions of rows.
#pragma once

#include "kernel/contract.h"
#include "kernel/row_sum.h"

namespace megamoe::kernel {

/// `kVectors` neighbouring vectors from `column` on, so that the pointer of a slot is read once for all of
/// them.
template <class V, int kVectors, class Out>
void combine_columns(const CombineRow& r, int64_t column, Out* out) {
  V sum[kVectors];
  for (int j = 0; j < kVectors; ++j)
    sum[j] = V::load(r.rows[0] + column + j * V::kLanes) * V::set(r.weights[0]);
  for (int slot = 1; slot < r.slots; ++slot) {
    const uint16_t* row = r.rows[slot] + column;
    const V weight = V::set(r.weights[slot]);
    for (int j = 0; j < kVectors; ++j) sum[j] = sum[j] + V::load(row + j * V::kLanes) * weight;
  }
  for (int j = 0; j < kVectors; ++j) store_rounded(out + column + j * V::kLanes, sum[j], V::kLanes);
}

template <class V, class Out>
void combine_to(const CombineRow& r, Out* out) {
  if (r.slots == 0) {
    for (int64_t i = 0; i < r.h; ++i) out[i] = {};
    return;
  }
  constexpr int64_t kColumns = 4 * V::kLanes, kLine = 64;
  const int64_t passes = r.h / kColumns;
  const int64_t lines = passes == 0 ? 0 : (r.prefetch_bytes / kLine + passes - 1) / passes;
  const std::byte* ahead = r.prefetch;
  const std::byte* const ahead_end = ahead + r.prefetch_bytes;
  int64_t column = 0;
  for (; column + kColumns <= r.h; column += kColumns) {
    for (int64_t i = 0; i < lines && ahead < ahead_end; ++i, ahead += kLine) __builtin_prefetch(ahead, 0, 2);
    combine_columns<V, 4>(r, column, out);
  }
  for (; column + V::kLanes <= r.h; column += V::kLanes) combine_columns<V, 1>(r, column, out);
  if (column < r.h) {
    const int count = static_cast<int>(r.h - column);
    V sum = V::load(r.rows[0] + column, count) * V::set(r.weights[0]);
    for (int slot = 1; slot < r.slots; ++slot) {
      sum = sum + V::load(r.rows[slot] + column, count) * V::set(r.weights[slot]);
    }
    store_rounded(out + column, sum, count);
  }
}

template <class V>
void combine(const CombineRow& r) {
  r.half ? combine_to<V>(r, static_cast<format::Float16*>(r.out))
         : combine_to<V>(r, static_cast<uint16_t*>(r.out));
}

template <class V>
void half_to_bf16(const void* half, int64_t n, uint16_t* out) {
  const auto* const x = static_cast<const format::Float16*>(half);
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, V::load(x + i));
  if (i < n) V::store(out + i, V::load(x + i, static_cast<int>(n - i)), static_cast<int>(n - i));
}

template <class V>
void cut_to_bf16(const float* values, int64_t n, uint16_t* out) {
  const auto cut = [](V x) __attribute__((always_inline)) {
    return V::from_bits(V::bits(x) & V::Int::set(static_cast<int32_t>(0xffff0000u)));
  };
  int64_t i = 0;
  for (; i + 2 * V::kLanes <= n; i += 2 * V::kLanes) {
    const V both[2] = {cut(V::load(values + i)), cut(V::load(values + i + V::kLanes))};
    V::store(out + i, both);
  }
  for (; i < n; i += V::kLanes) {
    const int count = n - i < V::kLanes ? static_cast<int>(n - i) : V::kLanes;
    V::store(out + i, cut(V::load(values + i, count)), count);
  }
}

/// Two codes to a byte, the even column in the low half. Whole words, for the vectors that g++ makes of them.
template <class V>
void doubled_e2m1(const uint8_t* codes, int64_t n, int8_t* out) {
  for (int64_t i = 0; i < n / 2; ++i) {
    const uint32_t pair = codes[i];
    const auto both = static_cast<uint16_t>((pair & 0x0f) | (pair & 0xf0) << 4);
    const auto bits = [both](int from) { return static_cast<uint16_t>(both >> from & 0x0101); };
    const uint16_t low = bits(0), middle = bits(1), high = bits(2), negative = bits(3);
    // 0 1 2 3 4 6 8 12: the code itself up to 4.
    const uint16_t magnitude =
        (both & 0x0707) + (high & low) + ((high & middle) << 1) + ((high & middle & low) << 1);
    const uint16_t minus = negative & (low | middle | high);  // a carry from -0 would reach the next byte
    const uint16_t value = static_cast<uint16_t>((magnitude ^ minus * 255) + minus);
    __builtin_memcpy(out + 2 * i, &value, sizeof(value));
  }
}

}  // namespace megamoe::kernel
