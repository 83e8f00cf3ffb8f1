// Rows as the vpdpbusd tiles with scales of groups read them.
//
// A group's accumulators start from the bits of 1.5 * 2^(23 + e), 2^e being the factor of the row. A sum d of
// less than 2^22 leaves the bits of that number plus d * 2^e: one subtraction converts and scales it,
// exactly. What the offset of the weights adds to d is taken from the start.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernel/isa/avx512_vnni/group_codes.h"
#include "kernel/pack_rows.h"

namespace megamoe::isa_avx512_vnni {

/// What stands before a packed tile.
struct alignas(64) Flags {
  int32_t all;  ///< every group has start bits
  /// Between which the exponents of the factors lie, NaN left out; groups of zeros may have smaller ones.
  int32_t least, most;
};

/// A packed tile: its flags, then for each group its codes as [group / 4][rows] dwords and four rows of
/// dwords.
struct Packed {
  enum : int64_t { kStart, kMagic, kMinusSum, kFactor, kExtra };  ///< what follows the codes

  int64_t codes, stride;  ///< dwords

  Packed(int rows, int64_t group) : codes(group / 4 * rows), stride(codes + kExtra * rows) {}
};

/// Rows as the tiles read them.
template <class Level>
struct GroupRows {
  static size_t bytes(int rows, int64_t k) {
    int64_t most = 0;
    for (const int64_t group : kernel::kGroupSizes) {
      most = std::max(most, kernel::groups_of(k, group) * Packed(rows, group).stride);
    }
    return kernel::round_to_cache_line(static_cast<size_t>(sizeof(Flags) + 4 * most));
  }

  static void pack(const kernel::PackRows& p) {
    const Packed at(p.rows, p.group);
    auto* const flags = static_cast<Flags*>(p.out);
    auto* out = reinterpret_cast<int32_t*>(flags + 1);
    const auto rows = static_cast<__mmask8>((1u << p.rows) - 1);
    const auto* scales = reinterpret_cast<const std::byte*>(p.scales);
    __mmask8 missing = 0;
    __m256i least = _mm256_set1_epi32(kStartExponent), most = _mm256_setzero_si256();  // of start bits
    for (int64_t begin = 0; begin < p.k; begin += p.group, out += at.stride) {
      kernel::PackRows part = p;
      part.codes = static_cast<const std::byte*>(p.codes) + begin;
      part.k = std::min(p.group, p.k - begin);
      part.out = out;
      if (part.k < p.group) std::memset(out, 0, static_cast<size_t>(at.codes) * 4);
      kernel::transpose_dwords<Level>(part, 1, 0);
      __m256i sums = _mm256_setzero_si256(), any = sums;
      for (int64_t d = 0; d < at.codes; d += p.rows) {
        const __m256i four = _mm256_maskz_loadu_epi32(rows, out + d);
        sums = _mm256_dpbusd_epi32(sums, _mm256_set1_epi8(1), four);
        any = _mm256_or_si256(any, four);
      }
      float factors[8] = {1, 1, 1, 1, 1, 1, 1, 1};
      if (scales != nullptr) {
        for (int r = 0; r < p.rows; ++r) std::memcpy(factors + r, scales + r * p.scale_bytes, sizeof(float));
        scales += sizeof(float);
      }
      const __m256i magic = start_bits_of(factors);
      missing |= _mm256_testn_epi32_mask(magic, magic);
      const __m256i exponent = _mm256_srli_epi32(magic, 23);
      const __mmask8 numbers = rows & _mm256_cmpneq_epi32_mask(magic, _mm256_set1_epi32(kQuietNan));
      most = _mm256_mask_max_epi32(most, numbers, most, exponent);
      least = _mm256_mask_min_epi32(least, numbers & _mm256_test_epi32_mask(any, any), least, exponent);
      const __m256i offset = _mm256_mullo_epi32(sums, _mm256_set1_epi32(kOffset));
      const __m256i minus_sum =
          _mm256_and_si256(_mm256_sub_epi32(_mm256_setzero_si256(), sums), _mm256_set1_epi32(0xffff));
      int32_t* const extra = out + at.codes;
      _mm256_mask_storeu_epi32(extra + Packed::kStart * p.rows, rows, _mm256_sub_epi32(magic, offset));
      _mm256_mask_storeu_epi32(extra + Packed::kMagic * p.rows, rows, magic);
      _mm256_mask_storeu_epi32(extra + Packed::kMinusSum * p.rows, rows, minus_sum);
      _mm256_mask_storeu_ps(extra + Packed::kFactor * p.rows, rows, _mm256_loadu_ps(factors));
    }
    flags->all = (missing & rows) == 0;
    alignas(32) int32_t leasts[8], mosts[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(leasts), least);
    _mm256_store_si256(reinterpret_cast<__m256i*>(mosts), most);
    flags->least = *std::min_element(leasts, leasts + 8) - kStartExponent;
    flags->most = *std::max_element(mosts, mosts + 8) - kStartExponent;
  }

 private:
  static constexpr int kStartExponent = 150;  ///< field of a start whose factor is 1
  static constexpr int kLargestExponent = 104;
  static constexpr int kSmallestExponent = -149;
  static constexpr int32_t kQuietNan = 0x7fc00000;

  /// Bits from which the accumulators of a group with this factor start; 0 where none serve.
  static int32_t start_bits(float factor) {
    if (factor != factor) return kQuietNan;
    const auto bits = std::bit_cast<uint32_t>(factor);
    constexpr uint32_t kMantissa = (1u << 23) - 1;
    // 2^exponent, normal or subnormal; the sign of a negative factor makes a large exponent.
    int exponent = static_cast<int>(bits >> 23) - 127;
    if (bits <= kMantissa) {
      if (!std::has_single_bit(bits)) return 0;
      exponent = std::countr_zero(bits) + kSmallestExponent;
      if (exponent < kSmallestExponent + 2) return 0;  // a quarter would lose bits
    } else if ((bits & kMantissa) != 0 || exponent > kLargestExponent) {
      return 0;
    }
    return (exponent + kStartExponent) << 23 | 0x400000;
  }

  /// Start bits of up to eight factors.
  static __m256i start_bits_of(const float (&factors)[8]) {
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
};

}  // namespace megamoe::isa_avx512_vnni
