// Tiles of the 512-bit levels with vpdpbusd for weights with scales of groups: 7 rows x 32 columns straight
// from codes, with the sums of a group as integers and those of all groups as floats in registers.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "kernel/by_rows.h"
#include "kernel/isa/avx512/rows.h"
#include "kernel/isa/avx512_vnni/group_codes.h"
#include "kernel/isa/avx512_vnni/group_rows.h"
#include "kernel/isa/avx512_vnni/kept_weights.h"
#include "kernel/k_loop.h"

namespace megamoe::isa_avx512_vnni {

inline constexpr int kGroupRows = 7;  // 28 accumulators, 2 vectors of weights, 1 activation, 1 table
inline constexpr int kKeptRows = 22;  // decoding costs as much as some 18 rows gain

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

  [[gnu::always_inline]] void begin(const kernel::Tile& t) {
    if (t.accumulate) return isa_avx512::load_rows(c, t.c);
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
  template <bool kKeeps>
  [[gnu::always_inline]] void add(__m512i w0, __m512i w1, const int32_t* a, uint8_t* kept) {
    if constexpr (kKeeps) {
      _mm512_store_si512(kept, w0);
      _mm512_store_si512(kept + 64, w1);
    }
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          const __m512i activations = _mm512_set1_epi32(a[r]);
          dot(x[r][0], w0, activations);
          dot(x[r][1], w1, activations);
        });
  }
  /// Eight k of 32 columns, and where kKeeps their values to `kept`.
  template <bool kKeeps, class Nibbles>
  [[gnu::always_inline]] void add(const uint8_t* codes, const Nibbles& nibbles, const int32_t* a,
                                  uint8_t* kept) {
    const __m512i codes0 = _mm512_loadu_si512(codes), codes1 = _mm512_loadu_si512(codes + 64);
    add<kKeeps>(nibbles.low(codes0), nibbles.low(codes1), a, kept);
    if constexpr (kTight) {
      add<kKeeps>(nibbles.low(shifted(codes)), nibbles.low(shifted(codes + 64)), a + kRows, kept + 128);
    } else {
      add<kKeeps>(nibbles.high(codes0), nibbles.high(codes1), a + kRows, kept + 128);
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
  /// The same with the exponents of scales, where no sum of a group gets out of range.
  [[gnu::always_inline]] void scale_by_powers(const int32_t* magic, __m512 exponent0, __m512 exponent1) {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          const __m512 from = _mm512_castsi512_ps(_mm512_set1_epi32(magic[r]));
          c[r][0] = _mm512_add_ps(c[r][0], _mm512_scalef_ps(less<false>(x[r][0], from), exponent0));
          c[r][1] = _mm512_add_ps(c[r][1], _mm512_scalef_ps(less<false>(x[r][1], from), exponent1));
        });
  }
  [[gnu::always_inline]] void store(void* to) const {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          _mm512_store_ps(static_cast<float*>(to) + r * kernel::kPanelColumns, c[r][0]);
          _mm512_store_ps(static_cast<float*>(to) + r * kernel::kPanelColumns + 16, c[r][1]);
        });
  }

 private:
  [[gnu::always_inline]] static __m512i shifted(const uint8_t* codes) {
    __m512i high;
    asm("vpsrlw $4, %1, %0" : "=v"(high) : "m"(*reinterpret_cast<const __m512i*>(codes)));
    return high;
  }
};

/// From what another tile, or this one, has decoded. Pointers in registers: g++ would put a structure of them
/// on the stack by way of a vector register, which waits behind the products of the tile before.
template <class Level, int kRows>
void tile_kept_groups(const kernel::Tile& t, const int32_t* a, const uint8_t* codes, const float* exponents) {
  constexpr int64_t kGroup = kernel::kMxGroup;
  kernel::SpreadPrefetch<Level, Level::kLocality> prefetch(
      t, kernel::groups_of(t.k, kGroup) * kernel::kPrefetchStride, 1);
  GroupSums<kRows> sums;
  sums.begin(t);
  for (int64_t k = 0; k < t.k; k += kGroup) {
    const int32_t* const extra = a + kGroup / 4 * kRows;
    sums.start(extra + Packed::kStart * kRows);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup / 4; ++i, codes += 128) {
      sums.template add<false>(_mm512_load_si512(codes), _mm512_load_si512(codes + 64), a + i * kRows,
                               nullptr);
    }
    prefetch.step();
    sums.scale_by_powers(extra + Packed::kMagic * kRows, _mm512_load_ps(exponents),
                         _mm512_load_ps(exponents + 16));
    exponents += kernel::kPanelColumns;
    a = extra + Packed::kExtra * kRows;
  }
  sums.store(t.c);
}

/// Returns the columns that it cannot do: those with the largest scales. `kKeeps`: writes values to `kept`.
template <class Level, class Codes, class Nibbles, int kRows, bool kKeeps>
__mmask32 tile_group_codes(const kernel::Tile& t, const int32_t* a, uint8_t* kept) {
  const int64_t group = Codes::kGroup != 0 ? Codes::kGroup : t.group;
  const Codes coded(t.form);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const Nibbles nibbles(Codes::values());
  const int64_t announced = Codes::kWhole ? group : 8;  // k between two announcements
  kernel::SpreadPrefetch<Level, Level::kLocality> prefetch(
      t, (t.k + announced - 1) / announced * kernel::kPrefetchStride, 1);
  __mmask32 odd = 0;
  GroupSums<kRows> sums;
  sums.begin(t);
  for (int64_t k = 0; k < t.k; k += group) {
    const int32_t* extra = a + group / 4 * kRows;
    sums.start(extra + Packed::kStart * kRows);
    if (coded.has_zeros()) {
      sums.take(coded.zeros(header, 0), coded.zeros(header, 16), extra + Packed::kMinusSum * kRows);
    }
    const uint8_t* codes = header + coded.header_bytes();
    if constexpr (Codes::kWhole) {
#pragma GCC unroll 4
      for (int i = 0; i < group / 8; ++i) {
        sums.template add<kKeeps>(codes + i * 128, nibbles, a + 2 * i * kRows, kept + i * 256);
      }
      codes += group / 8 * 128;
      kept += group / 8 * 256;
      prefetch.step();
    } else {
      const uint8_t* const end = codes + (std::min(group, t.k - k) + 7) / 8 * 128;
#pragma GCC unroll 4
      for (; codes != end; codes += 128, a += 2 * kRows) {
        sums.template add<false>(codes, nibbles, a, nullptr);
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
  if (odd == 0) sums.store(t.c);
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
        const bool first = k == 0 && !t.accumulate;
        _mm512_store_ps(c, _mm512_fmadd_ps(value, scale, first ? _mm512_setzero_ps() : _mm512_load_ps(c)));
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
    const int64_t group = Codes::kGroup != 0 ? Codes::kGroup : t.group;
    const auto* const a =
        reinterpret_cast<const int32_t*>(flags + 1) + t.k_begin / group * Packed(t.rows, group).stride;
    const auto at = static_cast<size_t>(t.rows - 1);
    const bool plain = flags->all != 0;
    if constexpr (Codes::kKeeps) {
      if (t.kept != nullptr) {
        const KeptWeights kept(t.kept, t.k);
        if (t.decoded && kept.take(*flags)) return kKeptByRows[at](t, a, kept.codes, kept.exponents);
        if (!t.decoded) {
          const auto* const panel = static_cast<const uint8_t*>(t.panel);
          kept.template read_scales<Codes>(panel);
          if (plain && kByRows<true>[at](t, a, kept.codes) == 0) return;
          if (!plain) kept.template decode<Codes, Nibbles>(panel);
          return multiply_any<Level, Codes, Nibbles>(t, a);
        }
      }
    }
    if (plain && kByRows<false>[at](t, a, nullptr) == 0) return;
    multiply_any<Level, Codes, Nibbles>(t, a);
  }

 private:
  template <bool kKeeps>
  static constexpr auto kByRows = kernel::functions_by_rows<kGroupRows>([]<int kRows>() {
    return &tile_group_codes<Level, Codes, Nibbles, kRows, kKeeps>;
  });
  static constexpr auto kKeptByRows =
      kernel::functions_by_rows<kGroupRows>([]<int kRows>() { return &tile_kept_groups<Level, kRows>; });
};

}  // namespace megamoe::isa_avx512_vnni
