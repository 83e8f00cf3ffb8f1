// Tiles of the 512-bit levels with vpdpbusd for weights with scales of groups: 7 rows x 32 columns straight
// from codes, with the sums of a group as integers and those of all groups as floats in registers.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "kernel/by_rows.h"
#include "kernel/isa/avx512_vnni/group_codes.h"
#include "kernel/isa/avx512_vnni/group_rows.h"
#include "kernel/k_loop.h"

namespace megamoe::isa_avx512_vnni {

inline constexpr int kGroupRows = 7;  // 28 accumulators, 2 vectors of weights, 1 activation, 1 table

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512i& sum, __m512i unsigned_codes, __m512i signed_codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_codes), "v"(signed_codes));
}
/// Takes zero points times the sum of the activations from a sum.
[[gnu::always_inline]] inline void take_zeros(__m512i& sum, __m512i zeros, int32_t minus_activations) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(zeros), "v"(_mm512_set1_epi32(minus_activations)));
}

/// step(0), step(1) ... with constant numbers: arrays that they index stay in registers.
template <class Step, int... kIndex>
[[gnu::always_inline]] inline void each(std::integer_sequence<int, kIndex...>, Step step) {
  (step(std::integral_constant<int, kIndex>{}), ...);
}

// Not constexpr: g++ would make it in a register that tall tiles do not have. Not inline: levels that share
// this header keep their own.
constinit const float kQuarter = 0.25f;

/// sum - from, or a quarter of it; for that `from` is a quarter.
template <bool kQuarters>
[[gnu::always_inline]] inline __m512 less(__m512i sum, __m512 from) {
  __m512 value = _mm512_castsi512_ps(sum);
  if constexpr (!kQuarters) return _mm512_sub_ps(value, from);
  asm("vfmsub132ps %1%{1to16%}, %2, %0" : "+v"(value) : "m"(kQuarter), "v"(from));
  return value;
}

/// The sums of one group, as integers, and of all groups.
template <int kRows>
struct GroupSums {
  static constexpr std::make_integer_sequence<int, kRows> kEach{};
  /// No register is left for codes that are used twice.
  static constexpr bool kTight = kRows == kGroupRows;
  __m512i x[kRows][2];
  __m512 c[kRows][2];

  [[gnu::always_inline]] void clear() {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) { c[r][0] = c[r][1] = _mm512_setzero_ps(); });
  }
  [[gnu::always_inline]] void start(const int32_t* starts) {
    each(
        kEach, [&](auto r)
                   __attribute__((always_inline)) { x[r][0] = x[r][1] = _mm512_set1_epi32(starts[r]); });
  }
  [[gnu::always_inline]] void take(__m512i zeros0, __m512i zeros1, const int32_t* minus_activations) {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          take_zeros(x[r][0], zeros0, minus_activations[r]);
          take_zeros(x[r][1], zeros1, minus_activations[r]);
        });
  }
  [[gnu::always_inline]] void add(__m512i w0, __m512i w1, const int32_t* a) {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          const __m512i activations = _mm512_set1_epi32(a[r]);
          dot(x[r][0], w0, activations);
          dot(x[r][1], w1, activations);
        });
  }
  /// Eight k of 32 columns.
  template <class Nibbles>
  [[gnu::always_inline]] void add(const uint8_t* codes, const Nibbles& nibbles, const int32_t* a) {
    const __m512i codes0 = _mm512_loadu_si512(codes), codes1 = _mm512_loadu_si512(codes + 64);
    add(nibbles.low(codes0), nibbles.low(codes1), a);
    if constexpr (kTight) {
      add(nibbles.low(shifted(codes)), nibbles.low(shifted(codes + 64)), a + kRows);
    } else {
      add(nibbles.high(codes0), nibbles.high(codes1), a + kRows);
    }
  }
  template <bool kQuarters>
  [[gnu::always_inline]] void scale(const int32_t* magic, __m512 scale0, __m512 scale1) {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          __m512 from = _mm512_castsi512_ps(_mm512_set1_epi32(magic[r]));
          if constexpr (kQuarters) asm("vmulps %1%{1to16%}, %0, %0" : "+v"(from) : "m"(kQuarter));
          c[r][0] = _mm512_fmadd_ps(less<kQuarters>(x[r][0], from), scale0, c[r][0]);
          c[r][1] = _mm512_fmadd_ps(less<kQuarters>(x[r][1], from), scale1, c[r][1]);
        });
  }
  [[gnu::always_inline]] void store(float* to) const {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          _mm512_store_ps(to + r * kernel::kPanelColumns, c[r][0]);
          _mm512_store_ps(to + r * kernel::kPanelColumns + 16, c[r][1]);
        });
  }

 private:
  [[gnu::always_inline]] static __m512i shifted(const uint8_t* codes) {
    __m512i high;
    asm("vpsrlw $4, %1, %0" : "=v"(high) : "m"(*reinterpret_cast<const __m512i*>(codes)));
    return high;
  }
};

/// Returns the columns that it cannot do: those with the largest scales.
template <class Level, class Codes, class Nibbles, int kRows>
__mmask32 tile_group_codes(const kernel::Tile& t, const int32_t* a) {
  const int64_t group = Codes::kGroup != 0 ? Codes::kGroup : t.group;
  const Codes coded(t.form);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const Nibbles nibbles(Codes::values());
  const int64_t announced = Codes::kWhole ? group : 8;  // k between two announcements
  kernel::SpreadPrefetch<Level, Level::kLocality> prefetch(
      t, (t.k + announced - 1) / announced * kernel::kPrefetchStride, 1);
  __mmask32 odd = 0;
  GroupSums<kRows> sums;
  sums.clear();
  for (int64_t k = 0; k < t.k; k += group) {
    const int32_t* extra = a + group / 4 * kRows;
    sums.start(extra + Packed::kStart * kRows);
    if (coded.has_zeros()) {
      sums.take(coded.zeros(header, 0), coded.zeros(header, 16), extra + Packed::kMinusSum * kRows);
    }
    const uint8_t* codes = header + coded.header_bytes();
    if constexpr (Codes::kWhole) {
#pragma GCC unroll 4
      for (int i = 0; i < group / 8; ++i) sums.add(codes + i * 128, nibbles, a + 2 * i * kRows);
      codes += group / 8 * 128;
      prefetch.step();
    } else {
      const uint8_t* const end = codes + (std::min(group, t.k - k) + 7) / 8 * 128;
#pragma GCC unroll 4
      for (; codes != end; codes += 128, a += 2 * kRows) {
        sums.add(codes, nibbles, a);
        prefetch.step();
      }
    }
    const auto* const magic = extra + Packed::kMagic * kRows;
    bool small = false;
    if constexpr (Codes::kHasSmallScales) small = Codes::odd_scales(header) != 0;
    if (!small) [[likely]] {
      sums.template scale<false>(magic, coded.scale(header, 0), coded.scale(header, 16));
    } else if constexpr (Codes::kHasSmallScales) {
      odd = _kor_mask32(odd, Codes::large_scales(header));
      sums.template scale<true>(magic, Codes::doubled_scale(header, 0), Codes::doubled_scale(header, 16));
    }
    header = codes;
    a = extra + Packed::kExtra * kRows;
  }
  sums.store(static_cast<float*>(t.c));
  return odd;
}

/// The same sums for factors without start bits and any scales.
template <class Level, class Codes, class Nibbles>
[[gnu::noinline]] void multiply_any(const kernel::Tile& t, const int32_t* a) {
  const Packed at(t.rows, t.group);
  const Codes coded(t.form);
  const Nibbles nibbles(Codes::values());
  const auto* header = static_cast<const uint8_t*>(t.panel);
  for (int64_t k = 0; k < t.k; k += t.group, a += at.stride) {
    const int64_t eights = Codes::kWhole ? t.group / 8 : (std::min(t.group, t.k - k) + 7) / 8;
    const uint8_t* const codes = header + coded.header_bytes();
    for (int column = 0; column < kernel::kPanelColumns; column += 16) {
      const __m512 scale = coded.any_scale(header, column);
      const __m512i zeros = coded.has_zeros() ? coded.zeros(header, column) : _mm512_setzero_si512();
      for (int r = 0; r < t.rows; ++r) {
        const int32_t minus_sum = a[at.codes + Packed::kMinusSum * t.rows + r];
        __m512i sum = _mm512_set1_epi32(kOffset * static_cast<int16_t>(minus_sum));
        take_zeros(sum, zeros, minus_sum);
        for (int64_t e = 0; e < eights; ++e) {
          const __m512i eight = _mm512_loadu_si512(codes + e * 128 + column * 4);
          dot(sum, nibbles.low(eight), _mm512_set1_epi32(a[2 * e * t.rows + r]));
          dot(sum, nibbles.high(eight), _mm512_set1_epi32(a[(2 * e + 1) * t.rows + r]));
        }
        const float factor = std::bit_cast<float>(a[at.codes + Packed::kFactor * t.rows + r]);
        float* const c = static_cast<float*>(t.c) + r * kernel::kPanelColumns + column;
        const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor));
        _mm512_store_ps(c, _mm512_fmadd_ps(value, scale, k == 0 ? _mm512_setzero_ps() : _mm512_load_ps(c)));
      }
    }
    header = codes + eights * 128;
  }
}

/// The functions for 1 .. kGroupRows rows. Level says where announced lines go, kLocality.
template <class Level, class Codes, class Nibbles>
struct GroupCodeTiles {
  static void run(const kernel::Tile& t) {
    const auto* const flags = static_cast<const Flags*>(t.a);
    const auto* const a = reinterpret_cast<const int32_t*>(flags + 1);
    if (flags->all != 0 && kByRows[static_cast<size_t>(t.rows - 1)](t, a) == 0) return;
    multiply_any<Level, Codes, Nibbles>(t, a);
  }

 private:
  static constexpr auto kByRows = kernel::functions_by_rows<kGroupRows>(
      []<int kRows>() { return &tile_group_codes<Level, Codes, Nibbles, kRows>; });
};

}  // namespace megamoe::isa_avx512_vnni
