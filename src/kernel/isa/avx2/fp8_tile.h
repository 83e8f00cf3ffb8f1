// Products straight from stored FP8 codes: the values and the order of sums of a strip, which with few rows
// takes longer to make than to multiply. Codes become the upper bits of float16, of which the CPU makes
// floats, subnormal ones too.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernel/contract.h"
#include "kernel/isa/avx2/load.h"
#include "kernel/k_loop.h"
#include "kernel/tiles_by_rows.h"

namespace megamoe::isa_avx2 {

// Not constexpr: g++ would make them in registers that it does not have.
alignas(32) inline constinit const uint32_t kE4M3Bits[8] = {0xbf80bf80, 0xbf80bf80, 0xbf80bf80, 0xbf80bf80,
                                                            0xbf80bf80, 0xbf80bf80, 0xbf80bf80, 0xbf80bf80};
alignas(32) inline constinit const uint32_t kEightExponents[8] = {8 << 23, 8 << 23, 8 << 23, 8 << 23,
                                                                  8 << 23, 8 << 23, 8 << 23, 8 << 23};

/// Values come 2^-kRaised times too small. Under scale bytes from kFirstByte to kLastByte all are normal
/// numbers or infinite. NaN, which float16 has elsewhere, has the scale NaN.
struct E4M3Halves {
  static constexpr int kRaised = 8;                       // the exponent of float16 is 15 and not 7 too large
  static constexpr int kFirstByte = 10, kLastByte = 246;  // 2^-9 * 2^(10 - 127) is the least normal float
  [[gnu::always_inline]] static __m256i halves(__m128i codes) {
    __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    asm("vpand %1, %0, %0" : "+x"(words) : "m"(kE4M3Bits));
    return words;
  }
  [[gnu::always_inline]] static void raise(__m256i& scale) {
    asm("vpaddd %1, %0, %0" : "+x"(scale) : "m"(kEightExponents));
  }
};
struct E5M2Halves {
  static constexpr int kRaised = 0;
  static constexpr int kFirstByte = 17, kLastByte = 254;
  [[gnu::always_inline]] static __m256i halves(__m128i codes) {
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
  }
  [[gnu::always_inline]] static void raise(__m256i&) {}
};

/// Scales of 8 columns of a group and the values under them; with kAny for every scale byte, otherwise for
/// those that Halves names.
template <class Halves, bool kAny>
struct Fp8Scale {
  __m256 scale;

  [[gnu::always_inline]] void load(const uint8_t* bytes) {
    scale = scales_of_bytes<kAny>(bytes);
    if constexpr (!kAny) {
      __m256i bits = _mm256_castps_si256(scale);
      Halves::raise(bits);
      scale = _mm256_castsi256_ps(bits);
    }
  }
  [[gnu::always_inline]] __m256 value(__m128i halves) const {
    const __m256 value = _mm256_cvtph_ps(halves);
    if constexpr (!kAny) return _mm256_mul_ps(value, scale);
    // As a strip holds it: rounded once where it is subnormal, by an addition that is fast there, and cut.
    const __m256 raised = _mm256_mul_ps(value, _mm256_set1_ps(1 << Halves::kRaised));
    const __m256 product = _mm256_fmadd_ps(raised, scale, _mm256_set1_ps(-0.0f));
    return _mm256_and_ps(product, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
};

/// The products of one k. Sums has kVectors, kRowCount, start, add<number of a vector>(activations of a k,
/// weights of the vector and of the next one), load and store.
template <class Halves, class Sums, class Scale>
[[gnu::always_inline]] inline void add_fp8(Sums& sums, const Scale (&scales)[Sums::kVectors],
                                           const uint8_t* codes, const float* a) {
  const auto add_two = [&]<int kVector>() __attribute__((always_inline)) {
    const __m256i halves =
        Halves::halves(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 8 * kVector)));
    sums.template add<kVector>(a, scales[kVector].value(_mm256_castsi256_si128(halves)),
                               scales[kVector + 1].value(_mm256_extracti128_si256(halves, 1)));
  };
  add_two.template operator()<0>();
  if constexpr (Sums::kVectors == 4) add_two.template operator()<2>();
}

/// `k` k of a group under any scales, an even number.
template <class Level, class Halves, class Sums>
[[gnu::noinline]] void add_any_fp8_group(const uint8_t* group, int column, const float* a, int64_t k,
                                         float* c) {
  Fp8Scale<Halves, true> scales[Sums::kVectors];
  for (int j = 0; j < Sums::kVectors; ++j) scales[j].load(group + column + 8 * j);
  const uint8_t* codes = group + kernel::kPanelColumns + column;
  Sums sums;
  sums.load(c);
  for (int64_t i = 0; i < k; ++i, codes += kernel::kPanelColumns, a += Sums::kRowCount) {
    add_fp8<Halves>(sums, scales, codes, a);
  }
  sums.store(c);
}

template <class Level, class Halves, class Sums, kernel::Locality kLocality>
void tile_fp8(const kernel::Tile& t) {
  using kernel::kMxGroup;
  constexpr int kColumns = 8 * Sums::kVectors;
  constexpr int64_t kGroupBytes = kernel::kPanelColumns * (1 + kMxGroup);
  constexpr int kSteps = 4;  // of announcements in a group
  const int64_t groups = kernel::groups_of(t.k, kMxGroup);
  kernel::SpreadPrefetch<Level, kLocality> prefetch(t, groups * kSteps * kernel::kPrefetchStride,
                                                    kernel::kPanelColumns / kColumns);
  for (int column = 0; column < kernel::kPanelColumns; column += kColumns) {
    auto* const c = static_cast<float*>(t.c) + column;
    const auto* group = static_cast<const uint8_t*>(t.panel);
    const auto* a = static_cast<const float*>(t.a);
    Sums sums;
    sums.start(t, column);
    for (int64_t left = t.k; left > 0; left -= kMxGroup, group += kGroupBytes) {
      if (left < kMxGroup || !scales_within<Halves::kFirstByte, Halves::kLastByte>(group)) [[unlikely]] {
        for (int i = 0; i < kSteps; ++i) prefetch.step();
        sums.store(c);
        add_any_fp8_group<Level, Halves, Sums>(group, column, a, std::min<int64_t>(left, kMxGroup), c);
        sums.load(c);
        a += kMxGroup * Sums::kRowCount;
        continue;
      }
      Fp8Scale<Halves, false> scales[Sums::kVectors];
#pragma GCC unroll 4
      for (int j = 0; j < Sums::kVectors; ++j) scales[j].load(group + column + 8 * j);
      const uint8_t* codes = group + kernel::kPanelColumns + column;
      for (int i = 0; i < kSteps; ++i) {
        prefetch.step();
#pragma GCC unroll 8
        for (int k = 0; k < kMxGroup / kSteps; ++k) {
          add_fp8<Halves>(sums, scales, codes + k * kernel::kPanelColumns, a + k * Sums::kRowCount);
          asm("" : "+r"(codes), "+r"(a));  // the next k after this one: there are registers for one
        }
        codes += kMxGroup / kSteps * kernel::kPanelColumns;
        a += kMxGroup / kSteps * Sums::kRowCount;
      }
    }
    sums.store(c);
  }
}

template <class Level, class Halves, template <int> class Sums>
struct Fp8Tile {
  template <int kRows, kernel::Locality kLocality>
  static constexpr auto tile = &tile_fp8<Level, Halves, Sums<kRows>, kLocality>;
};

/// The functions for 1 .. kMaxRows rows.
template <class Level, class Halves, template <int> class Sums, int kMaxRows>
using Fp8Tiles = kernel::TilesByRows<Fp8Tile<Level, Halves, Sums>, kMaxRows>;

}  // namespace megamoe::isa_avx2
