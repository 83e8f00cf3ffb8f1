// Group kernel of the avx512_vnni level: 7 rows x 32 columns with the sums of a group as integers and those
// of all groups as floats in registers.
//
// A group's accumulators start from the bits of 1.5 * 2^(23 + e), 2^e being the factor of the row. A sum d of
// less than 2^22 leaves the bits of that number plus d * 2^e: one subtraction converts and scales it,
// exactly.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernel/group_tile.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_vnni {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 7;  // 28 accumulators, 2 vectors of weights, 1 activation
constexpr int64_t kShortGroup = 32;
constexpr int kLargestExponent = 104;
constexpr int kSmallestExponent = -149;
constexpr int32_t kQuietNan = 0x7fc00000;

/// The vector of the plain form of a group, which takes any factor.
struct F32 {
  static constexpr int kLanes = 16;
  __m512 v;

  static F32 set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32 load_converted(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }
  static void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
  static F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  friend F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
};

/// Bits from which the accumulators of a group with this factor start; 0 where none serve.
int32_t start_bits(float factor) {
  if (factor != factor) return kQuietNan;
  const auto bits = std::bit_cast<uint32_t>(factor);
  constexpr uint32_t kMantissa = (1u << 23) - 1;
  // 2^exponent, normal or subnormal; the sign of a negative factor makes a large exponent.
  int exponent = static_cast<int>(bits >> 23) - 127;
  if (bits <= kMantissa) {
    if (!std::has_single_bit(bits)) return 0;
    exponent = std::countr_zero(bits) + kSmallestExponent;
  } else if ((bits & kMantissa) != 0 || exponent > kLargestExponent) {
    return 0;
  }
  return (exponent + 150) << 23 | 0x400000;
}

/// A packed tile: codes + 128 as [K / 4][rows] dwords, the start bits [groups][rows], the factors
/// [groups][rows] and whether every group has start bits.
struct Packed {
  size_t starts, factors, flag, bytes;

  Packed(int rows, int64_t k, int64_t groups) {
    const size_t row_of_groups = static_cast<size_t>(groups) * static_cast<size_t>(rows) * sizeof(float);
    starts = kernel::PackS8AsU8<Level>::bytes(rows, k);
    factors = starts + row_of_groups;
    flag = factors + row_of_groups;
    bytes = kernel::round_to_cache_line(flag + sizeof(int32_t));
  }
};

size_t packed_bytes(int rows, int64_t k) {
  return Packed(rows, k, kernel::groups_of(k, kernel::kGroupSizes[0])).bytes;
}

void pack_rows(const kernel::PackRows& p) {
  kernel::PackS8AsU8<Level>::pack(p);
  const int64_t groups = kernel::groups_of(p.k, p.group);
  const Packed at(p.rows, p.k, groups);
  auto* const out = static_cast<std::byte*>(p.out);
  auto* const starts = reinterpret_cast<int32_t*>(out + at.starts);
  auto* const factors = reinterpret_cast<float*>(out + at.factors);
  int32_t all = 1;
  for (int r = 0; r < p.rows; ++r) {
    const auto* const row =
        reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(p.scales) + r * p.scale_bytes);
    for (int64_t g = 0; g < groups; ++g) {
      const float factor = p.scales == nullptr ? 1.0f : row[g];
      factors[g * p.rows + r] = factor;
      starts[g * p.rows + r] = start_bits(factor);
      all &= starts[g * p.rows + r] != 0;
    }
  }
  std::memcpy(out + at.flag, &all, sizeof all);
}

/// One line of assembly: with the intrinsic, g++ 12 at -O3 keeps the accumulators on the stack.
[[gnu::always_inline]] inline void dot(__m512i& sum, __m512i unsigned_codes, __m512i signed_codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_codes), "v"(signed_codes));
}

/// What the offset of 128 of every activation adds to the sums of a group, negative.
[[gnu::always_inline]] inline __m512i offset_of(const int32_t* column_sums) {
  return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_loadu_si512(column_sums), 7));
}

/// kSteps: dwords of k in every group, or 0 where the tile says it. No branch then stands inside a group.
template <int kRows, int kSteps>
void tile(const kernel::Tile& t, const int32_t* starts) {
  const auto* weights = static_cast<const uint32_t*>(t.panel);
  const auto* a = static_cast<const int32_t*>(t.a);
  const int32_t* column_sums = t.column_sums;
  const float* scales = t.group_scales;
  const int64_t groups = kernel::groups_of(t.k, t.group);
  kernel::SpreadPrefetch<Level> prefetch(t, groups * kernel::kPrefetchStride, 1);
  __m512 c[kRows][2];
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    __m512i x[kRows][2];
    const __m512i offset0 = offset_of(column_sums), offset1 = offset_of(column_sums + 16);
#pragma GCC unroll 7
    for (int r = 0; r < kRows; ++r) {
      const __m512i start = _mm512_set1_epi32(starts[r]);
      x[r][0] = _mm512_add_epi32(offset0, start);
      x[r][1] = _mm512_add_epi32(offset1, start);
    }
    const auto step = [&]() __attribute__((always_inline)) {
      const __m512i w0 = _mm512_load_si512(weights), w1 = _mm512_load_si512(weights + 16);
#pragma GCC unroll 7
      for (int r = 0; r < kRows; ++r) {
        const __m512i codes = _mm512_set1_epi32(a[r]);
        dot(x[r][0], codes, w0);
        dot(x[r][1], codes, w1);
      }
      a += kRows;
      weights += kPanelColumns;
    };
    if constexpr (kSteps != 0) {
#pragma GCC unroll 8
      for (int i = 0; i < kSteps; ++i) step();
    } else {
      int64_t steps = (std::min(t.group, t.k - g * t.group) + 3) / 4;
      for (; steps >= 4; steps -= 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) step();
      }
      for (; steps > 0; --steps) step();
    }
    prefetch.step();
    asm("" : "+r"(starts));  // load them again: there are no registers to keep them in
    const __m512 scale0 = _mm512_loadu_ps(scales), scale1 = _mm512_loadu_ps(scales + 16);
#pragma GCC unroll 7
    for (int r = 0; r < kRows; ++r) {
      const __m512 start = _mm512_castsi512_ps(_mm512_set1_epi32(starts[r]));
      c[r][0] = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(x[r][0]), start), scale0, c[r][0]);
      c[r][1] = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(x[r][1]), start), scale1, c[r][1]);
    }
    starts += kRows;
    column_sums += kPanelColumns;
    scales += kPanelColumns;
  }
  auto* const out = static_cast<float*>(t.c);
#pragma GCC unroll 7
  for (int r = 0; r < kRows; ++r) {
    _mm512_store_ps(out + r * kPanelColumns, c[r][0]);
    _mm512_store_ps(out + r * kPanelColumns + 16, c[r][1]);
  }
}

/// The same sums by the plain kernel, for factors without start bits.
void plain_tile(const kernel::Tile& t, const float* factors) {
  alignas(64) int32_t sums[kMaxRows * kPanelColumns];
  const int64_t groups = kernel::groups_of(t.k, t.group);
  for (int64_t g = 0; g < groups; ++g) {
    kernel::Tile part{};
    part.a = static_cast<const std::byte*>(t.a) + g * t.group * t.rows;
    part.rows = t.rows;
    part.k = std::min(t.group, t.k - g * t.group);
    part.panel =
        static_cast<const std::byte*>(t.panel) + kernel::panel_bytes(kernel::Family::kS8, g * t.group);
    part.column_sums = t.column_sums + g * kPanelColumns;
    part.c = sums;
    part.prefetch = static_cast<const std::byte*>(t.panel);
    gemm_s8.tile(part);
    kernel::add_scaled_group<F32>(sums, t.rows, t.group_scales + g * kPanelColumns, factors + g * t.rows,
                                  g == 0, static_cast<float*>(t.c));
  }
}

using TileFunction = void (*)(const kernel::Tile&, const int32_t*);
template <int kSteps>
constexpr TileFunction kTiles[kMaxRows] = {tile<1, kSteps>, tile<2, kSteps>, tile<3, kSteps>, tile<4, kSteps>,
                                           tile<5, kSteps>, tile<6, kSteps>, tile<7, kSteps>};

void run(const kernel::Tile& t) {
  const Packed at(t.rows, t.k, kernel::groups_of(t.k, t.group));
  const auto* const packed = static_cast<const std::byte*>(t.a);
  int32_t all = 0;
  std::memcpy(&all, packed + at.flag, sizeof all);
  if (all != 0) {
    const bool whole = t.group == kShortGroup && t.k % kShortGroup == 0;
    const auto& tiles = whole ? kTiles<kShortGroup / 4> : kTiles<0>;
    return tiles[t.rows - 1](t, reinterpret_cast<const int32_t*>(packed + at.starts));
  }
  plain_tile(t, reinterpret_cast<const float*>(packed + at.factors));
}

}  // namespace

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_7x32_avx512_vnni",
    .isa = Isa::kAvx512Vnni,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = packed_bytes,
    .pack_rows = pack_rows,
    .tile = run,
};

}  // namespace megamoe::isa_avx512_vnni
