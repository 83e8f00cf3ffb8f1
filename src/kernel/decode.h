// Stored panels to strips over any float vector type V: every lane is a column, so no value changes its lane.
#pragma once

#include "kernel/contract.h"
#include "quant/codes.h"

namespace megamoe::kernel {

/// 2^(byte - 127) of every lane; NaN for byte 255. Byte 0 is a subnormal number.
template <class V>
[[gnu::always_inline]] inline V e8m0_scale(typename V::Int byte) {
  using Int = typename V::Int;
  const Int normal =
      Int::select_less(Int::set(254), byte, Int::set(0x7fc00000), Int::template shift_left<23>(byte));
  return V::from_bits(Int::select_less(byte, Int::set(1), Int::set(0x00400000), normal));
}

/// The upper halves of two lanes' floats as a bfloat16 pair, `low` in the low half.
template <class V>
[[gnu::always_inline]] inline void store_bf16_pair(float* out, V low, V high) {
  using Int = typename V::Int;
  V::store(out, V::from_bits(Int::template shift_right<16>(V::bits(low)) |
                             (V::bits(high) & Int::set(static_cast<int32_t>(0xffff0000u)))));
}

/// Eight nibbles of a column to four bfloat16 pairs, or fewer at the end of K; value(nibble) is a V.
template <class V, class Value>
[[gnu::always_inline]] inline void nibbles_to_bf16(typename V::Int codes, int64_t pairs, float* out,
                                                   Value value) {
  using Int = typename V::Int;
  const auto at = [&](Int shifted) { return value(shifted & Int::set(15)); };
  const V k[8] = {at(codes),
                  at(Int::template shift_right<8>(codes)),
                  at(Int::template shift_right<16>(codes)),
                  at(Int::template shift_right<24>(codes)),
                  at(Int::template shift_right<4>(codes)),
                  at(Int::template shift_right<12>(codes)),
                  at(Int::template shift_right<20>(codes)),
                  at(Int::template shift_right<28>(codes))};
  for (int64_t p = 0; p < pairs; ++p) store_bf16_pair(out + p * kPanelColumns, k[2 * p], k[2 * p + 1]);
}

/// MX codes to bfloat16 pairs: value = decode(code) * scale, exact unless it is subnormal.
template <class V, class Code>
void decode_mx(const DecodePanel& d) {
  using Int = typename V::Int;
  constexpr int64_t kLineBytes = kPanelColumns;
  constexpr int64_t kGroupBytes = kLineBytes + kMxGroup * kPanelColumns * Code::kBits / 8;
  const auto* group = static_cast<const uint8_t*>(d.stored) + d.k_begin / kMxGroup * kGroupBytes;
  auto* strip = static_cast<float*>(d.strip);
  for (int64_t k = 0; k < d.k; k += kMxGroup, group += kGroupBytes) {
    const int64_t pairs = d.k - k < kMxGroup ? (d.k - k + 1) / 2 : kMxGroup / 2;
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      const V scale = e8m0_scale<V>(Int::load(group + column));
      const auto value = [&](Int code) {
        return quant::steady_product(Code::template decode<V>(code), scale);
      };
      [[maybe_unused]] const uint8_t* codes = group + kLineBytes + column;
      float* out = strip + column;
      if constexpr (Code::kBits == 8) {
        for (int64_t pair = 0; pair < pairs; ++pair, codes += 2 * kPanelColumns) {
          store_bf16_pair(out + pair * kPanelColumns, value(Int::load(codes)),
                          value(Int::load(codes + kPanelColumns)));
        }
      } else {
        const auto* dwords = reinterpret_cast<const float*>(group + kLineBytes) + column;
        for (int64_t pair = 0; pair < pairs; pair += 4, dwords += kPanelColumns) {
          nibbles_to_bf16<V>(V::bits(V::load(dwords)), pairs - pair < 4 ? pairs - pair : 4,
                             out + pair * kPanelColumns, value);
        }
      }
    }
    strip += pairs * kPanelColumns;
  }
}

/// Nibbles to signed bytes, four k of a column in a dword.
template <class V>
void decode_int4(const DecodePanel& d) {
  using Int = typename V::Int;
  const auto* stored = static_cast<const float*>(d.stored) + d.k_begin / 8 * kPanelColumns;
  auto* strip = static_cast<float*>(d.strip);
  const auto store = [&](int64_t at, Int nibbles) {
    // A nibble above 7 stands for itself minus 16: as a byte, itself plus 240.
    const Int signs = nibbles & Int::set(0x08080808);
    V::store(strip + at,
             V::from_bits(nibbles + Int::template shift_left<5>(signs) - Int::template shift_left<1>(signs)));
  };
  const Int low = Int::set(0x0f0f0f0f);
  const int64_t rows = (d.k + 3) / 4;
  for (int64_t row = 0; row < rows; row += 2, stored += kPanelColumns) {
    for (int column = 0; column < kPanelColumns; column += V::kLanes) {
      const Int eight = V::bits(V::load(stored + column));
      store(row * kPanelColumns + column, eight & low);
      if (row + 1 == rows) continue;
      store((row + 1) * kPanelColumns + column, Int::template shift_right<4>(eight) & low);
    }
  }
}

}  // namespace megamoe::kernel
