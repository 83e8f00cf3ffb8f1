// E2M1 weights decoded once for all row tiles of a panel. Look-ups would wait for the ports of the products
// in every tile; and without them sums of groups can be scaled by vscalefps and added, which take other ports
// than the multiply-add that scales and adds at once.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernel/isa/avx512_vnni/group_codes.h"
#include "kernel/isa/avx512_vnni/group_rows.h"

namespace megamoe::isa_avx512_vnni {

/// A range of k of a panel in the memory of Tile::kept.
struct KeptWeights {
  uint8_t* codes;    ///< u8 operands, [k / 4][32][4], of whole groups
  float* exponents;  ///< of the scales of doubled values, [groups][32]
  int32_t* limits;   ///< the least exponent and the most, larger than any where a scale is NaN

  [[gnu::always_inline]] KeptWeights(std::byte* memory, int64_t k)
      : codes(reinterpret_cast<uint8_t*>(memory)),
        exponents(reinterpret_cast<float*>(memory + groups_of(k) * kernel::kMxGroup * kernel::kPanelColumns)),
        limits(reinterpret_cast<int32_t*>(exponents + groups_of(k) * kernel::kPanelColumns)),
        groups_(groups_of(k)) {}

  /// Exponents and limits, from stored groups.
  template <class Codes>
  void read_scales(const uint8_t* group) const {
    const __m512i bias = _mm512_set1_epi32(kBias);
    __m256i least = _mm256_set1_epi8(-1), most = _mm256_setzero_si256();
    for (int64_t g = 0; g < groups_; ++g, group += Codes::header_bytes() + kCodeBytes) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
      least = _mm256_min_epu8(least, bytes);
      most = _mm256_max_epu8(most, bytes);
      float* const powers = exponents + g * kernel::kPanelColumns;
      _mm512_store_ps(powers, _mm512_cvtepi32_ps(_mm512_sub_epi32(widened_bytes(group), bias)));
      _mm512_store_ps(powers + 16, _mm512_cvtepi32_ps(_mm512_sub_epi32(widened_bytes(group + 16), bias)));
    }
    alignas(32) uint8_t leasts[32], mosts[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(leasts), least);
    _mm256_store_si256(reinterpret_cast<__m256i*>(mosts), most);
    const int largest = *std::max_element(mosts, mosts + 32);
    limits[0] = *std::min_element(leasts, leasts + 32) - kBias;
    limits[1] = largest == kNan ? kNan : largest - kBias;
  }
  /// Codes, where no tile has written them.
  template <class Codes, class Nibbles>
  void decode(const uint8_t* group) const {
    const Nibbles nibbles(Codes::values());
    uint8_t* to = codes;
    for (int64_t g = 0; g < groups_; ++g) {
      group += Codes::header_bytes();
      for (int64_t i = 0; i < kCodeBytes; i += 64, group += 64) {
        const __m512i eight = _mm512_loadu_si512(group);
        uint8_t* const at = to + i / 128 * 256 + i % 128;
        _mm512_store_si512(at, nibbles.low(eight));
        _mm512_store_si512(at + 128, nibbles.high(eight));
      }
      to += 2 * kCodeBytes;
    }
  }

  /// Whether every sum of a group of rows with these factors, of less than 2^13, is a float when it is
  /// scaled.
  bool take(const Flags& rows) const {
    constexpr int kLeast = -149, kMost = 127 - 13;
    return rows.all != 0 && rows.least + limits[0] >= kLeast && rows.most + limits[1] <= kMost;
  }

 private:
  static constexpr int kBias = 128;  ///< of the scale bytes, 1 more for doubled values
  static constexpr int kNan = 255;
  static constexpr int64_t kCodeBytes = kernel::kMxGroup * kernel::kPanelColumns / 2;  ///< of a stored group

  static int64_t groups_of(int64_t k) { return kernel::groups_of(k, kernel::kMxGroup); }

  int64_t groups_;
};

}  // namespace megamoe::isa_avx512_vnni
