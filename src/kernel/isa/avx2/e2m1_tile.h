// Products with panels of E2M1 codes straight from the codes: the sum of a group of 32 is an integer, and one
// fused multiply-add adds it to those of the groups before.
//
// Weights are u8 operands, 2 x value + 12. Activations are s8 digits, see e2m1_rows.h. What the 12 adds to
// the sum of a group depends on the activations alone and is taken from the start.
//
// Lanes is what a level has of vectors of columns: Vector, Floats, kLanes, kTable (from a code to its
// operand), table, weights, zero, splat, add, shift_left, to_float, splat_float, product, fma, scale,
// load and store. Dot is how it multiplies: see E2M1Sums.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx2/e2m1_rows.h"
#include "kernel/k_loop.h"
#include "kernel/tiles_by_rows.h"

namespace megamoe::isa_avx2 {

inline constexpr int64_t kE2M1GroupBytes = kernel::kPanelColumns * (1 + kernel::kMxGroup / 2);

/// The sums of one group for some columns. Dot has start(first value), add(sum, u8, s8) and end(sum); kStarts
/// where end() has the first value in it. With two chains the low and the high nibbles have sums of their
/// own.
template <class Lanes, class Dot, int kDigits, int kRows, int kVectors, int kChains,
          bool kRoomy = kDigits* kRows* kVectors* kChains <= Lanes::kRoomySums>
struct E2M1Sums {
  using Vector = typename Lanes::Vector;
  Vector x[kChains][kDigits][kRows][kVectors];

  /// The products of all codes of a group. `each` is called before those of 8 k.
  template <class Each>
  [[gnu::always_inline]] void add_group(const int32_t* starts, const uint32_t* codes, Vector values,
                                        const int32_t* a, Each each) {
    start(starts);
#pragma GCC unroll 4
    for (int i = 0; i < kE2M1Dwords / 2; ++i) {
      each();
      add<0>(codes, values, a);
      add<1>(codes, values, a + kDigits * kRows);
      codes += kernel::kPanelColumns;
      a += 2 * kDigits * kRows;
    }
  }
  /// The sum of a row as an integer, digits of base 2^kBits.
  template <int kBits>
  [[gnu::always_inline]] Vector total(const int32_t* starts, int r, int j) const {
    Vector sum = digit(kDigits - 1, r, j);
    if constexpr (kDigits == 2) sum = Lanes::add(Lanes::template shift_left<kBits>(sum), digit(0, r, j));
    if constexpr (!Dot::kStarts) sum = Lanes::add(sum, Lanes::splat(starts[r]));
    return sum;
  }

 private:
  [[gnu::always_inline]] void start(const int32_t* starts) {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Vector start = Dot::start(starts[r]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
#pragma GCC unroll 12
        for (int i = 0; i < kDigits * kChains; ++i)
          x[i / kDigits][i % kDigits][r][j] = i == 0 ? start : Lanes::zero();
      }
    }
  }
  template <int kHigh>
  [[gnu::always_inline]] void add(const uint32_t* codes, Vector values, const int32_t* a) {
    auto& sums = x[kHigh * (kChains - 1)];
    // Not before the products that came first: there are no registers for more.
    asm("" : "+r"(codes), "+v"(sums[kDigits - 1][kRows - 1][kVectors - 1]));
    Vector w[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j)
      w[j] = Lanes::template weights<4 * kHigh, kRoomy>(codes + Lanes::kLanes * j, values);
#pragma GCC unroll 3
    for (int i = 0; i < kDigits; ++i) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const Vector digits = Lanes::splat(a[i * kRows + r]);
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) Dot::add(sums[i][r][j], w[j], digits);
      }
    }
  }
  [[gnu::always_inline]] Vector digit(int i, int r, int j) const {
    Vector sum = Dot::end(x[0][i][r][j]);
    if constexpr (kChains == 2) sum = Lanes::add(sum, Dot::end(x[1][i][r][j]));
    return sum;
  }
};

/// C += scale * fl(sum * factor) for some columns of a group.
template <class Lanes, bool kAnyScale, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_scaled(const typename Lanes::Vector (&sums)[kRows][kVectors],
                                              const float* factors, const uint8_t* scales, float* c) {
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    const auto scale = Lanes::template scale<kAnyScale>(scales + Lanes::kLanes * j);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const auto value = Lanes::product(Lanes::to_float(sums[r][j]), Lanes::splat_float(factors[r]));
      float* const at = c + r * kernel::kPanelColumns + Lanes::kLanes * j;
      Lanes::store(at, Lanes::fma(value, scale, Lanes::load(at)));
    }
    asm volatile("" : : : "memory");  // C stays in memory, and the next scales wait
  }
}

template <class Level, class Lanes, class Dot, class Rows, int kRows, kernel::Locality kLocality>
void tile_e2m1(const kernel::Tile& t) {
  using Vector = typename Lanes::Vector;
  constexpr int kDigits = Rows::kDigits;
  constexpr int kVectors = Dot::vectors(kDigits, kRows);
  constexpr int kColumns = Lanes::kLanes * kVectors;
  const auto values = Lanes::table(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const int64_t groups = kernel::groups_of(t.k, kernel::kMxGroup);
  auto* const c = static_cast<float*>(t.c);
  for (int at = 0; at < kRows * kernel::kPanelColumns; at += Lanes::kLanes)
    Lanes::store(c + at, Lanes::splat_float(0));
  kernel::SpreadPrefetch<Level, kLocality> prefetch(t, groups * (kE2M1Dwords / 2) * kernel::kPrefetchStride,
                                                    kernel::kPanelColumns / kColumns);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const auto* a = static_cast<const int32_t*>(t.a);
  for (int64_t g = 0; g < groups; ++g, header += kE2M1GroupBytes, a += Rows::stride(kRows)) {
    const int32_t* const starts = a + kE2M1Dwords * kDigits * kRows;
    const auto* const factors = reinterpret_cast<const float*>(starts + kRows);
    const bool ordinary = scales_within<1, 254>(header);  // normal numbers
    for (int column = 0; column < kernel::kPanelColumns; column += kColumns) {
      const auto* const codes = reinterpret_cast<const uint32_t*>(header + kernel::kPanelColumns) + column;
      E2M1Sums<Lanes, Dot, kDigits, kRows, kVectors, Dot::chains(kDigits, kRows)> sums;
      sums.add_group(starts, codes, values, a, [&] { prefetch.step(); });
      Vector totals[kRows][kVectors];
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) totals[r][j] = sums.template total<Rows::kBits>(starts, r, j);
      }
      if constexpr (kDigits == 2) {
        const int32_t* const lowest = starts + 2 * kRows;
        if (*lowest != 0) [[unlikely]] {
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j) {
            E2M1Sums<Lanes, Dot, 1, kRows, 1, 1, false>
                third;  // a vector at a time: the others keep registers
            third.add_group(lowest + 1, codes + Lanes::kLanes * j, values, lowest + 1 + kRows, [] {});
#pragma GCC unroll 12
            for (int r = 0; r < kRows; ++r)
              totals[r][j] = Lanes::add(Lanes::template shift_left<Rows::kBits>(totals[r][j]),
                                        third.template total<Rows::kBits>(lowest + 1, r, 0));
            asm volatile("" : : : "memory");  // the next vector waits
          }
        }
      }
      if (ordinary) [[likely]] {
        add_scaled<Lanes, false>(totals, factors, header + column, c + column);
      } else {
        add_scaled<Lanes, true>(totals, factors, header + column, c + column);
      }
    }
  }
}

template <class Level, class Lanes, class Dot, class Rows>
struct E2M1Tile {
  template <int kRows, kernel::Locality kLocality>
  static constexpr auto tile = &tile_e2m1<Level, Lanes, Dot, Rows, kRows, kLocality>;
};

/// The functions for 1 .. kMaxRows rows.
template <class Level, class Lanes, class Dot, class Rows, int kMaxRows>
using E2M1Tiles = kernel::TilesByRows<E2M1Tile<Level, Lanes, Dot, Rows>, kMaxRows>;

/// The kernel of rows as Rows packs them.
template <class Level, class Lanes, class Dot, class Rows, int kMaxRows>
constexpr kernel::Gemm e2m1_gemm(const char* name, Isa isa, uint32_t features = 0) {
  static_assert(kMaxRows <= kE2M1MostRows);
  constexpr auto kCode = static_cast<size_t>(kernel::WeightCode::kE2M1);
  kernel::Gemm gemm{};
  gemm.name = name;
  gemm.isa = isa;
  gemm.family = Rows::kFamily;
  gemm.max_rows = kMaxRows;
  gemm.packed_bytes = E2M1Packing<Rows>::bytes;
  gemm.pack_rows = E2M1Packing<Rows>::pack;
  gemm.coded_rows[kCode] = kMaxRows;
  gemm.coded_tile[kCode] = E2M1Tiles<Level, Lanes, Dot, Rows, kMaxRows>::run;
  gemm.features = features;
  return gemm;
}

}  // namespace megamoe::isa_avx2
