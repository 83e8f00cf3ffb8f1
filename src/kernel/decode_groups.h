// Stored panels to strips of codes, with scales and column sums per group beside them, for the group kernels.
// Every lane of V is a column.
#pragma once

#include "format/float16.h"
#include "kernel/contract.h"
#include "kernel/decode.h"
#include "quant/codes.h"

namespace megamoe::kernel {

/// Scales of a group header from `column` on, exact as float.
template <class V>
[[gnu::always_inline]] inline V group_scale(const GroupForm& form, const uint8_t* header, int column) {
  const uint8_t* const at = header + column * (dtype_bits(form.scales) / 8);
  if (form.scales == DType::kFloat32) return V::load(reinterpret_cast<const float*>(at));
  if (form.scales == DType::kFloat16) return V::load(reinterpret_cast<const format::Float16*>(at));
  return V::load(reinterpret_cast<const uint16_t*>(at));
}

/// What a stored int4 code is too large by: 8 + zero point.
template <class V>
[[gnu::always_inline]] inline typename V::Int int4_offset(const GroupForm& form, const uint8_t* header,
                                                          int column) {
  using Int = typename V::Int;
  if (!form.zeros) return Int::set(8);
  const Int zero = Int::load(header + form.scale_bytes() + column);
  return Int::select_less(Int::set(127), zero, zero - Int::set(256 - 8), zero + Int::set(8));
}

/// Four codes of a column less the offset, as signed bytes; `minus` is the negative offset in every byte.
template <class Int>
[[gnu::always_inline]] inline Int int4_to_s8(Int nibbles, Int minus) {
  // Codes are below 16, so that a sum of 7 bits stays in its byte; the top bits are added without carry.
  const Int top = Int::set(static_cast<int32_t>(0x80808080u));
  const Int sum = nibbles + (minus & Int::set(0x7f7f7f7f));
  const Int sign = minus & top;
  return (sum | sign) - (sum & sign);
}

/// Where the range begins in a stored panel whose groups have codes of so many bits.
template <class V>
const uint8_t* first_group(const DecodePanel& d, int code_bits) {
  const int64_t bytes = d.form.header_bytes() + d.form.group * kPanelColumns * code_bits / 8;
  return static_cast<const uint8_t*>(d.stored) + d.k_begin / d.form.group * bytes;
}

template <class V, Family kFamily>
void decode_int4_groups(const DecodePanel& d) {
  using Int = typename V::Int;
  const uint8_t* group = first_group<V>(d, 4);
  auto* strip = static_cast<float*>(d.strip);
  float* scales = d.scales;
  int32_t* sums = d.sums;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group) {
    const int64_t k = d.k - begin < d.form.group ? d.k - begin : d.form.group;
    const uint8_t* const codes = group + d.form.header_bytes();
    const int64_t rows = (k + k_per_dword(kFamily) - 1) / k_per_dword(kFamily);  // of the strip
    constexpr int64_t kRows = 8 / k_per_dword(kFamily);                          // from one row of codes
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      V::store(scales + column, group_scale<V>(d.form, group, column));
      const Int offset = int4_offset<V>(d.form, group, column);
      const Int byte = (Int::set(0) - offset) & Int::set(255);
      const Int two = byte | Int::template shift_left<8>(byte);
      const Int minus = two | Int::template shift_left<16>(two);
      Int sum = Int::set(0);
      for (int64_t row = 0; row < rows; row += kRows) {
        const int64_t count = rows - row < kRows ? rows - row : kRows;
        const Int eight =
            V::bits(V::load(reinterpret_cast<const float*>(codes) + row / kRows * kPanelColumns + column));
        float* const out = strip + row * kPanelColumns + column;
        if constexpr (kFamily == Family::kBf16) {
          nibbles_to_bf16<V>(eight, count, out, [&](Int code) { return V::from_int(code - offset); });
        } else {
          const Int halves[2] = {eight & Int::set(0x0f0f0f0f),
                                 Int::template shift_right<4>(eight) & Int::set(0x0f0f0f0f)};
          for (int64_t i = 0; i < count; ++i) {
            V::store(out + i * kPanelColumns, V::from_bits(int4_to_s8(halves[i], minus)));
            sum = sum + (halves[i] & Int::set(0x00ff00ff)) +
                  (Int::template shift_right<8>(halves[i]) & Int::set(0x00ff00ff));
          }
        }
      }
      if constexpr (kFamily == Family::kS8) {
        const Int codes_sum = (sum & Int::set(0xffff)) + Int::template shift_right<16>(sum);
        const V offsets = V::from_int(offset) * V::set(static_cast<float>(rows * 4));
        V::store(reinterpret_cast<float*>(sums + column), V::from_bits(codes_sum - V::to_int(offsets)));
      }
    }
    if constexpr (kFamily == Family::kS8) sums += kPanelColumns;
    scales += kPanelColumns;
    strip += rows * kPanelColumns;
    group = codes + (k + 7) / 8 * kPanelColumns * 4;
  }
}

/// E4M3 codes as bfloat16 values without their scales.
template <class V>
void decode_e4m3_groups(const DecodePanel& d) {
  using Int = typename V::Int;
  const uint8_t* group = first_group<V>(d, 8);
  auto* strip = static_cast<float*>(d.strip);
  float* scales = d.scales;
  for (int64_t begin = 0; begin < d.k; begin += d.form.group) {
    const int64_t k = d.k - begin < d.form.group ? d.k - begin : d.form.group;
    const int64_t pairs = (k + 1) / 2;
    const uint8_t* const codes = group + d.form.header_bytes();
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      V::store(scales + column, group_scale<V>(d.form, group, column));
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const uint8_t* const at = codes + 2 * pair * kPanelColumns + column;
        store_bf16_pair(strip + pair * kPanelColumns + column, quant::E4M3::decode<V>(Int::load(at)),
                        quant::E4M3::decode<V>(Int::load(at + kPanelColumns)));
      }
    }
    scales += kPanelColumns;
    strip += pairs * kPanelColumns;
    group = codes + pairs * 2 * kPanelColumns;
  }
}

/// E2M1 codes of the MX form as 2 x value in signed bytes.
template <class V>
void decode_e2m1_codes(const DecodePanel& d) {
  using Int = typename V::Int;
  constexpr int64_t kGroupBytes = kPanelColumns + kMxGroup * kPanelColumns / 2;
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kMxGroup * kGroupBytes;
  auto* strip = static_cast<float*>(d.strip);
  float* scales = d.scales;
  int32_t* sums = d.sums;
  // Half of 2^(byte - 127) makes up for the doubled codes.
  const auto twice = [](Int code) { return V::to_int(quant::E2M1::decode<V>(code) * V::set(2.0f)); };
  for (int64_t begin = 0; begin < d.k; begin += kMxGroup, group += kGroupBytes) {
    const int64_t k = d.k - begin < kMxGroup ? d.k - begin : kMxGroup;
    const int64_t rows = (k + 3) / 4;
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      V::store(scales + column, e8m0_scale<V>(Int::load(group + column)) * V::set(0.5f));
      const auto* codes = reinterpret_cast<const float*>(group + kPanelColumns) + column;
      Int sum = Int::set(0);
      const auto store = [&](int64_t row, Int eight) {
        const Int k0 = twice(eight & Int::set(15)),
                  k1 = twice(Int::template shift_right<8>(eight) & Int::set(15));
        const Int k2 = twice(Int::template shift_right<16>(eight) & Int::set(15));
        const Int k3 = twice(Int::template shift_right<24>(eight) & Int::set(15));
        sum = sum + k0 + k1 + k2 + k3;
        const Int low = (k0 & Int::set(255)) | Int::template shift_left<8>(k1 & Int::set(255));
        const Int high = (k2 & Int::set(255)) | Int::template shift_left<8>(k3);
        V::store(strip + row * kPanelColumns + column,
                 V::from_bits((low & Int::set(0xffff)) | Int::template shift_left<16>(high)));
      };
      for (int64_t row = 0; row < rows; row += 2, codes += kPanelColumns) {
        const Int eight = V::bits(V::load(codes));
        store(row, eight);
        if (row + 1 < rows) store(row + 1, Int::template shift_right<4>(eight));
      }
      V::store(reinterpret_cast<float*>(sums + column), V::from_bits(sum));
    }
    scales += kPanelColumns;
    sums += kPanelColumns;
    strip += rows * kPanelColumns;
  }
}

}  // namespace megamoe::kernel
