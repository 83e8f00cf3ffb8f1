// Codes of 4 bits to signed bytes by byte shuffles, 64 at a time: the forms of decode_groups.h for the s8
// family.
#pragma once

#include <immintrin.h>

#include "kernel/decode_groups.h"
#include "kernel/isa/avx512/simd.h"

namespace megamoe::isa_avx512 {

/// Column sums of strips as they are made, in pairs of 16 bits.
struct ColumnSum {
  __m512i pairs = _mm512_setzero_si512();

  void add(__m512i codes) {
    pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(_mm512_set1_epi8(1), codes));
  }
  void store(int32_t* sums) const {
    _mm512_storeu_si512(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

inline void decode_e2m1_codes(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  constexpr int64_t kGroupBytes = kPanelColumns + kernel::kMxGroup * kPanelColumns / 2;
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  const __m512i nibble = _mm512_set1_epi8(15);
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * kGroupBytes;
  auto* strip = static_cast<uint32_t*>(d.strip);
  float* scales = d.scales;
  int32_t* sums = d.sums;
  for (int64_t begin = 0; begin < d.k; begin += kernel::kMxGroup, group += kGroupBytes) {
    const int64_t k = d.k - begin < kernel::kMxGroup ? d.k - begin : kernel::kMxGroup;
    for (int column = 0; column < kPanelColumns; column += F32::kLanes) {
      F32::store(scales + column, kernel::e8m0_scale<F32>(I32::load(group + column)) * F32::set(0.5f));
    }
    const uint8_t* codes = group + kPanelColumns;
    ColumnSum sum[2];
    const int64_t rows = (k + 3) / 4;
    for (int64_t row = 0; row < rows; row += 2, codes += 2 * 64) {
      for (int j = 0; j < 2; ++j) {
        const __m512i both = _mm512_loadu_si512(codes + 64 * j);
        const __m512i first = _mm512_shuffle_epi8(table, _mm512_and_si512(both, nibble));
        _mm512_store_si512(strip + row * kPanelColumns + 16 * j, first);
        sum[j].add(first);
        if (row + 1 == rows) continue;
        const __m512i second =
            _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
        _mm512_store_si512(strip + (row + 1) * kPanelColumns + 16 * j, second);
        sum[j].add(second);
      }
    }
    sum[0].store(sums);
    sum[1].store(sums + 16);
    scales += kPanelColumns;
    sums += kPanelColumns;
    strip += rows * kPanelColumns;
  }
}

inline void decode_int4_codes(const kernel::DecodePanel& d) {
  using kernel::kPanelColumns;
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low_byte =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  const uint8_t* group = kernel::first_group<F32>(d, 4);
  auto* strip = static_cast<uint32_t*>(d.strip);
  float* scales = d.scales;
  int32_t* sums = d.sums;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group) {
    const int64_t k = d.k - begin < d.form.group ? d.k - begin : d.form.group;
    const uint8_t* codes = group + d.form.header_bytes();
    const int64_t rows = (k + 3) / 4;
    __m512i offset[2];
    for (int j = 0; j < 2; ++j) {
      F32::store(scales + 16 * j, kernel::group_scale<F32>(d.form, group, 16 * j));
      offset[j] = _mm512_shuffle_epi8(kernel::int4_offset<F32>(d.form, group, 16 * j).v, low_byte);
    }
    ColumnSum sum[2];
    for (int64_t row = 0; row < rows; row += 2, codes += 2 * 64) {
      for (int j = 0; j < 2; ++j) {
        const __m512i both = _mm512_loadu_si512(codes + 64 * j);
        const __m512i first = _mm512_sub_epi8(_mm512_and_si512(both, nibble), offset[j]);
        _mm512_store_si512(strip + row * kPanelColumns + 16 * j, first);
        sum[j].add(first);
        if (row + 1 == rows) continue;
        const __m512i second =
            _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), nibble), offset[j]);
        _mm512_store_si512(strip + (row + 1) * kPanelColumns + 16 * j, second);
        sum[j].add(second);
      }
    }
    sum[0].store(sums);
    sum[1].store(sums + 16);
    scales += kPanelColumns;
    sums += kPanelColumns;
    strip += rows * kPanelColumns;
    group = codes;
  }
}

}  // namespace megamoe::isa_avx512
