// Group kernel of the avx512_vnni level: 7 rows x 32 columns straight from codes, with the sums of a group as
// integers and those of all groups as floats in registers.
//
// A group's accumulators start from the bits of 1.5 * 2^(23 + e), 2^e being the factor of the row. A sum d of
// less than 2^22 leaves the bits of that number plus d * 2^e: one subtraction converts and scales it,
// exactly. What the offset of the weights adds to d is taken from the start.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernel/by_rows.h"
#include "kernel/isa/avx512_vnni/group_codes.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx512_vnni {
namespace {

using kernel::kPanelColumns;
struct Level;

constexpr int kMaxRows = 7;  // 28 accumulators, 2 vectors of weights, 1 activation, 1 table
constexpr int kLargestExponent = 104;
constexpr int kSmallestExponent = -149;
constexpr int32_t kQuietNan = 0x7fc00000;

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

/// A packed tile: a line that says whether every group has start bits, then for each group its codes as
/// [group / 4][rows] dwords and four rows of dwords.
struct Packed {
  enum : int64_t { kStart, kMagic, kMinusSum, kFactor, kExtra };  ///< what follows the codes
  static constexpr int64_t kFlagBytes = 64;

  int64_t codes, stride;  ///< dwords

  Packed(int rows, int64_t group) : codes(group / 4 * rows), stride(codes + kExtra * rows) {}
};

size_t packed_bytes(int rows, int64_t k) {
  int64_t most = 0;
  for (const int64_t group : kernel::kGroupSizes) {
    most = std::max(most, kernel::groups_of(k, group) * Packed(rows, group).stride);
  }
  return kernel::round_to_cache_line(static_cast<size_t>(Packed::kFlagBytes + 4 * most));
}

/// Start bits of up to eight factors.
__m256i start_bits_of(const float (&factors)[8]) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(factors));
  const __m256i exponent = _mm256_srli_epi32(bits, 23);
  const __mmask8 odd = _mm256_test_epi32_mask(bits, _mm256_set1_epi32((1 << 23) - 1)) |
                       _mm256_cmpgt_epu32_mask(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)),
                                               _mm256_set1_epi32(kLargestExponent + 127 - 1));
  if (odd == 0) {
    const __m256i shifted = _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(23)), 23);
    return _mm256_or_si256(shifted, _mm256_set1_epi32(0x400000));
  }
  alignas(32) int32_t starts[8];
  for (int r = 0; r < 8; ++r) starts[r] = start_bits(factors[r]);
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(starts));
}

void pack_rows(const kernel::PackRows& p) {
  const Packed at(p.rows, p.group);
  auto* const flag = static_cast<std::byte*>(p.out);
  auto* out = reinterpret_cast<int32_t*>(flag + Packed::kFlagBytes);
  const auto rows = static_cast<__mmask8>((1u << p.rows) - 1);
  const auto* scales = reinterpret_cast<const std::byte*>(p.scales);
  __mmask8 missing = 0;
  for (int64_t begin = 0; begin < p.k; begin += p.group, out += at.stride) {
    kernel::PackRows part = p;
    part.codes = static_cast<const std::byte*>(p.codes) + begin;
    part.k = std::min(p.group, p.k - begin);
    part.out = out;
    if (part.k < p.group) std::memset(out, 0, static_cast<size_t>(at.codes) * 4);
    kernel::transpose_dwords<Level>(part, 1, 0);
    __m256i sums = _mm256_setzero_si256();
    for (int64_t d = 0; d < at.codes; d += p.rows) {
      sums = _mm256_dpbusd_epi32(sums, _mm256_set1_epi8(1), _mm256_maskz_loadu_epi32(rows, out + d));
    }
    float factors[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (scales != nullptr) {
      for (int r = 0; r < p.rows; ++r) std::memcpy(factors + r, scales + r * p.scale_bytes, sizeof(float));
      scales += sizeof(float);
    }
    const __m256i magic = start_bits_of(factors);
    missing |= _mm256_testn_epi32_mask(magic, magic);
    const __m256i offset = _mm256_mullo_epi32(sums, _mm256_set1_epi32(kOffset));
    const __m256i minus_sum =
        _mm256_and_si256(_mm256_sub_epi32(_mm256_setzero_si256(), sums), _mm256_set1_epi32(0xffff));
    int32_t* const extra = out + at.codes;
    _mm256_mask_storeu_epi32(extra + Packed::kStart * p.rows, rows, _mm256_sub_epi32(magic, offset));
    _mm256_mask_storeu_epi32(extra + Packed::kMagic * p.rows, rows, magic);
    _mm256_mask_storeu_epi32(extra + Packed::kMinusSum * p.rows, rows, minus_sum);
    _mm256_mask_storeu_ps(extra + Packed::kFactor * p.rows, rows, _mm256_loadu_ps(factors));
  }
  const int32_t all = (missing & rows) == 0;
  std::memcpy(flag, &all, sizeof all);
}

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

/// The sums of one group, as integers, and of all groups.
template <int kRows>
struct GroupSums {
  static constexpr std::make_integer_sequence<int, kRows> kEach{};
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
  [[gnu::always_inline]] void add(const uint8_t* codes, __m512i values, const int32_t* a) {
    add(low_codes(codes, values), low_codes(codes + 64, values), a);
    add(high_codes(codes, values), high_codes(codes + 64, values), a + kRows);
  }
  [[gnu::always_inline]] void scale(const int32_t* magic, __m512 scale0, __m512 scale1) {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          const __m512 from = _mm512_castsi512_ps(_mm512_set1_epi32(magic[r]));
          c[r][0] = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(x[r][0]), from), scale0, c[r][0]);
          c[r][1] = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_castsi512_ps(x[r][1]), from), scale1, c[r][1]);
        });
  }
  [[gnu::always_inline]] void store(float* to) const {
    each(
        kEach, [&](auto r) __attribute__((always_inline)) {
          _mm512_store_ps(to + r * kPanelColumns, c[r][0]);
          _mm512_store_ps(to + r * kPanelColumns + 16, c[r][1]);
        });
  }
};

/// Returns the columns that it cannot do: those with odd scales.
template <class Codes, int kRows>
__mmask32 tile_group_codes(const kernel::Tile& t, const int32_t* a) {
  const int64_t group = Codes::kGroup != 0 ? Codes::kGroup : t.group;
  const Codes coded(t.form);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const __m512i values = Codes::values();
  const int64_t announced = Codes::kWhole ? group : 8;  // k between two announcements
  kernel::SpreadPrefetch<Level> prefetch(t, (t.k + announced - 1) / announced * kernel::kPrefetchStride, 1);
  __mmask32 odd = 0;
  GroupSums<kRows> sums;
  sums.clear();
  for (int64_t k = 0; k < t.k; k += group) {
    const int32_t* extra = a + group / 4 * kRows;
    odd = _kor_mask32(odd, Codes::odd_scales(header));
    sums.start(extra + Packed::kStart * kRows);
    if (coded.has_zeros()) {
      sums.take(coded.zeros(header, 0), coded.zeros(header, 16), extra + Packed::kMinusSum * kRows);
    }
    const uint8_t* codes = header + coded.header_bytes();
    if constexpr (Codes::kWhole) {
#pragma GCC unroll 4
      for (int i = 0; i < group / 8; ++i) sums.add(codes + i * 128, values, a + 2 * i * kRows);
      codes += group / 8 * 128;
      prefetch.step();
    } else {
      const uint8_t* const end = codes + (std::min(group, t.k - k) + 7) / 8 * 128;
#pragma GCC unroll 4
      for (; codes != end; codes += 128, a += 2 * kRows) {
        sums.add(codes, values, a);
        prefetch.step();
      }
    }
    sums.scale(extra + Packed::kMagic * kRows, coded.scale(header, 0), coded.scale(header, 16));
    header = codes;
    a = extra + Packed::kExtra * kRows;
  }
  sums.store(static_cast<float*>(t.c));
  return odd;
}

/// The same sums for factors without start bits and scales that are no normal numbers.
template <class Codes>
[[gnu::noinline]] void multiply_any(const kernel::Tile& t, const int32_t* a) {
  const Packed at(t.rows, t.group);
  const Codes coded(t.form);
  const __m512i values = Codes::values();
  const auto* header = static_cast<const uint8_t*>(t.panel);
  for (int64_t k = 0; k < t.k; k += t.group, a += at.stride) {
    const int64_t eights = Codes::kWhole ? t.group / 8 : (std::min(t.group, t.k - k) + 7) / 8;
    const uint8_t* const codes = header + coded.header_bytes();
    for (int column = 0; column < kPanelColumns; column += 16) {
      const __m512 scale = coded.any_scale(header, column);
      const __m512i zeros = coded.has_zeros() ? coded.zeros(header, column) : _mm512_setzero_si512();
      for (int r = 0; r < t.rows; ++r) {
        const int32_t minus_sum = a[at.codes + Packed::kMinusSum * t.rows + r];
        __m512i sum = _mm512_set1_epi32(kOffset * static_cast<int16_t>(minus_sum));
        take_zeros(sum, zeros, minus_sum);
        for (int64_t e = 0; e < eights; ++e) {
          const uint8_t* const from = codes + e * 128 + column * 4;
          dot(sum, low_codes(from, values), _mm512_set1_epi32(a[2 * e * t.rows + r]));
          dot(sum, high_codes(from, values), _mm512_set1_epi32(a[(2 * e + 1) * t.rows + r]));
        }
        const float factor = std::bit_cast<float>(a[at.codes + Packed::kFactor * t.rows + r]);
        float* const c = static_cast<float*>(t.c) + r * kPanelColumns + column;
        const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(factor));
        _mm512_store_ps(c, _mm512_fmadd_ps(value, scale, k == 0 ? _mm512_setzero_ps() : _mm512_load_ps(c)));
      }
    }
    header = codes + eights * 128;
  }
}

template <class Codes>
struct Tiles {
  static void run(const kernel::Tile& t) {
    const auto* const packed = static_cast<const std::byte*>(t.a);
    int32_t all = 0;
    std::memcpy(&all, packed, sizeof all);
    const auto* const a = reinterpret_cast<const int32_t*>(packed + Packed::kFlagBytes);
    if (all != 0 && kByRows[static_cast<size_t>(t.rows - 1)](t, a) == 0) return;
    multiply_any<Codes>(t, a);
  }

 private:
  static constexpr auto kByRows =
      kernel::functions_by_rows<kMaxRows>([]<int kRows>() { return &tile_group_codes<Codes, kRows>; });
};

}  // namespace

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_7x32_avx512_vnni",
    .isa = Isa::kAvx512Vnni,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = packed_bytes,
    .pack_rows = pack_rows,
    .tile = nullptr,
    .coded_rows = {0, 0, 0, kMaxRows, 0, kMaxRows, 0},
    .coded_tile = {nullptr, nullptr, nullptr, Tiles<E2M1Groups>::run, nullptr, Tiles<Int4Groups>::run,
                   nullptr},
};

}  // namespace megamoe::isa_avx512_vnni
