// FP8 with one float scale per 128 columns of a row: a power of two rounded up (group128), or max / largest
// code (block128). A group that holds infinity or NaN has scale NaN and codes +0.
#pragma once

#include "quant/codes.h"

namespace megamoe::quant {

inline constexpr int64_t kFp8Group = 128;

/// Walks over the groups of a row; `Rule::group<V, Code>` writes the codes of one and returns its scale.
template <class Code, class Rule, int kScaleMultiple>
struct Fp8Groups {
  template <class V>
  static void quantise(const QuantRow& r) {
    with_input(
        r, [&r](const auto* x) __attribute__((always_inline)) {
          float* const scales = static_cast<float*>(r.scales);
          int64_t groups = 0;
          for (int64_t begin = 0; begin < r.n; begin += kFp8Group) {
            const int64_t end = r.n - begin < kFp8Group ? r.n : begin + kFp8Group;
            const uint32_t largest = max_magnitude_bits<V>(x + begin, end - begin);
            if (largest >= 0x7f800000u) {
              scales[groups++] = __builtin_nanf("");
              clear_codes<V, Code>(r.codes, begin, end);
            } else {
              scales[groups++] = Rule::template group<V, Code>(r.codes, x, begin, end, largest);
            }
          }
          while (groups % kScaleMultiple != 0) scales[groups++] = 0.0f;
        });
  }

  /// fl(decode(q) * scale)
  template <class V>
  static void dequantise(const DequantRow& r) {
    const float* const scales = static_cast<const float*>(r.scales);
    for (int64_t begin = 0; begin < r.n; begin += kFp8Group) {
      const V scale = V::set(scales[begin / kFp8Group]);
      const int64_t columns = r.n - begin < kFp8Group ? r.n - begin : kFp8Group;
      each_vector<V>(
          columns, [&](int64_t i, int count) __attribute__((always_inline)) {
            const V value =
                Code::template decode<V>(Code::template load<V>(r.codes, begin + i, count)) * scale;
            count == V::kLanes ? V::store(r.out + begin + i, value)
                               : V::store(r.out + begin + i, value, count);
          });
    }
  }
};

/// `kAmax`: the largest magnitude counts as at least 1e-4.
template <bool kAmax>
struct PowerOfTwo128 {
  template <class V, class Code, class Input>
  [[gnu::always_inline]] static float group(void* codes, const Input* x, int64_t begin, int64_t end,
                                            uint32_t largest) {
    constexpr uint32_t kLeast = 0x38d1b717;  // 1e-4
    if (kAmax) largest = largest < kLeast ? kLeast : largest;
    uint32_t field = (largest >> 23) - Code::kEmax + ((largest & 0x7fffff) > 0x600000 ? 1 : 0);
    if (field == 0 || field > 254) field = 1;  // too small: the subtraction wrapped
    const V inverse = V::from_bits(V::Int::set(static_cast<int32_t>((254 - field) << 23)));
    encode_columns<V, Code>(
        codes, x, begin,
        end - begin, [=](V value) __attribute__((always_inline)) { return value * inverse; });
    return __builtin_bit_cast(float, field << 23);
  }
};

struct Quotient128 {
  template <class V, class Code, class Input>
  [[gnu::always_inline]] static float group(void* codes, const Input* x, int64_t begin, int64_t end,
                                            uint32_t largest) {
    const float scale = __builtin_bit_cast(float, largest) / __builtin_bit_cast(float, Code::kLargest);
    if (scale == 0.0f) {
      clear_codes<V, Code>(codes, begin, end);
      return scale;
    }
    const V divisor = V::set(scale);
    encode_columns<V, Code>(
        codes, x, begin,
        end - begin, [=](V value) __attribute__((always_inline)) { return value / divisor; });
    return scale;
  }
};

using Fp8Group128E5M2 = Fp8Groups<E5M2, PowerOfTwo128<false>, 1>;
using Fp8Group128E4M3 = Fp8Groups<E4M3, PowerOfTwo128<false>, 1>;
using Fp8Group128AmaxE5M2 = Fp8Groups<E5M2, PowerOfTwo128<true>, 1>;
using Fp8Group128AmaxE4M3 = Fp8Groups<E4M3, PowerOfTwo128<true>, 1>;
using Fp8Block128E5M2 = Fp8Groups<E5M2, Quotient128, 2>;
using Fp8Block128E4M3 = Fp8Groups<E4M3, Quotient128, 2>;

}  // namespace megamoe::quant
