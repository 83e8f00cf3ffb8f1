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
      const uint8_t* codes = group + kLineBytes + column;
      float* out = strip + column;
      for (int64_t pair = 0; pair < pairs; ++pair, out += kPanelColumns) {
        Int even, odd;
        if constexpr (Code::kBits == 8) {
          even = Int::load(codes + 2 * pair * kPanelColumns);
          odd = Int::load(codes + (2 * pair + 1) * kPanelColumns);
        } else {
          const Int both = Int::load(codes + pair * kPanelColumns);
          even = both & Int::set(15);
          odd = Int::template shift_right<4>(both);
        }
        const Int low = V::bits(Code::template decode<V>(even) * scale);
        const Int high = V::bits(Code::template decode<V>(odd) * scale);
        V::store(out, V::from_bits(Int::template shift_right<16>(low) |
                                   (high & Int::set(static_cast<int32_t>(0xffff0000u)))));
      }
    }
    strip += pairs * kPanelColumns;
  }
}

/// Nibbles to signed bytes, four k of a column in a dword.
template <class V>
void decode_int4(const DecodePanel& d) {
  using Int = typename V::Int;
  const auto* stored = static_cast<const uint16_t*>(d.stored) + d.k_begin / 4 * kPanelColumns;
  auto* strip = static_cast<float*>(d.strip);
  const int64_t dwords = (d.k + 3) / 4 * kPanelColumns;
  for (int64_t i = 0; i < dwords; i += V::kLanes) {
    const Int four = Int::template shift_right<16>(V::bits(V::load(stored + i)));
    const Int bytes = (four & Int::set(0xf)) | (Int::template shift_left<4>(four) & Int::set(0xf00)) |
                      (Int::template shift_left<8>(four) & Int::set(0xf0000)) |
                      (Int::template shift_left<12>(four) & Int::set(0xf000000));
    // A nibble above 7 stands for itself minus 16: as a byte, itself plus 240.
    const Int signs = bytes & Int::set(0x08080808);
    V::store(strip + i,
             V::from_bits(bytes + Int::template shift_left<5>(signs) - Int::template shift_left<1>(signs)));
  }
}

}  // namespace megamoe::kernel
