// Panels of 4-bit codes with scales per group of K as a product reads them: codes as u8 operands of vpdpbusd,
// value + kOffset by a look-up in registers, and the scales of a group.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx512/group_header.h"

namespace megamoe::isa_avx512_vnni {

/// Makes E2M1 doubled, -12 .. 12, and int4 unsigned. What it adds to the sum of a group depends on the
/// activations alone.
inline constexpr int kOffset = 12;

// Not constexpr: g++ would put copies for the assembly below on the stack.
inline constinit const int32_t kLowNibbles = 0x0f0f0f0f;

/// The values of 4 k of 16 columns each, from the low and the high nibbles of 64 bytes: by vpshufb, which
/// wants the other bits masked away.
class ShuffledNibbles {
 public:
  [[gnu::always_inline]] explicit ShuffledNibbles(__m128i table) : values_(_mm512_broadcast_i32x4(table)) {}

  [[gnu::always_inline]] __m512i low(__m512i codes) const {
    // From memory: a tall tile has no register to keep it in.
    asm("vpandd %1%{1to16%}, %0, %0" : "+v"(codes) : "m"(kLowNibbles));
    return _mm512_shuffle_epi8(values_, codes);
  }
  [[gnu::always_inline]] __m512i high(__m512i codes) const { return low(_mm512_srli_epi16(codes, 4)); }

 private:
  __m512i values_;
};

[[gnu::always_inline]] inline __m512i widened_bytes(const uint8_t* bytes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// Not inline: levels that share this header keep their own.
constinit const int32_t kOneExponent = 1 << 23;

/// MX groups of 32: doubled values under half of the scale 2^(byte - 127).
struct E2M1Groups {
  static constexpr int64_t kGroup = kernel::kMxGroup;
  static constexpr bool kWhole = true;  ///< the last group is stored whole

  explicit E2M1Groups(const kernel::GroupForm&) {}

  [[gnu::always_inline]] static __m128i values() {
    return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  }
  [[gnu::always_inline]] static int64_t header_bytes() { return kernel::kPanelColumns; }
  [[gnu::always_inline]] static bool has_zeros() { return false; }
  [[gnu::always_inline]] static __m512i zeros(const uint8_t*, int) { return _mm512_setzero_si512(); }
  static constexpr bool kHasSmallScales = true;
  static constexpr bool kKeeps = true;  ///< may be decoded once for several tiles
  /// Columns whose half scale is no normal number. Products with subnormal ones are several times slower.
  [[gnu::always_inline]] static __mmask32 odd_scales(const uint8_t* header) {
    int least = 2, span = 252;
    asm("" : "+r"(least), "+r"(span) : "r"(header));  // between groups there is no register to keep them in
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(header));
    return _mm256_cmpgt_epu8_mask(_mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(least))),
                                  _mm256_set1_epi8(static_cast<char>(span)));
  }
  /// Columns whose doubled scale is none.
  [[gnu::always_inline]] static __mmask32 large_scales(const uint8_t* header) {
    int most = 253;
    asm("" : "+r"(most) : "r"(header));
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(header));
    return _mm256_cmpgt_epu8_mask(bytes, _mm256_set1_epi8(static_cast<char>(most)));
  }
  [[gnu::always_inline]] static __m512 scale(const uint8_t* header, int column) {
    __m512i bits = _mm512_slli_epi32(widened_bytes(header + column), 23);
    asm("vpsubd %1%{1to16%}, %0, %0" : "+v"(bits) : "m"(kOneExponent));
    return _mm512_castsi512_ps(bits);
  }
  /// Twice 2^(byte - 127), for a quarter of the sums.
  [[gnu::always_inline]] static __m512 doubled_scale(const uint8_t* header, int column) {
    __m512i bits = _mm512_slli_epi32(widened_bytes(header + column), 23);
    asm("vpaddd %1%{1to16%}, %0, %0" : "+v"(bits) : "m"(kOneExponent));
    return _mm512_castsi512_ps(bits);
  }
  static __m512 any_scale(const uint8_t* header, int column) {
    const __m512i byte = widened_bytes(header + column);
    __m512i bits = _mm512_castps_si512(scale(header, column));
    bits = _mm512_mask_sllv_epi32(bits, _mm512_cmplt_epi32_mask(byte, _mm512_set1_epi32(2)),
                                  _mm512_set1_epi32(0x00200000), byte);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255)),
                                 _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(bits);
  }
};

/// int4 as code + 8, scales of three types, with or without zero points.
struct Int4Groups : isa_avx512::GroupHeader {
  static constexpr int64_t kGroup = 0;
  static constexpr bool kWhole = false;
  static constexpr bool kHasSmallScales = false;
  static constexpr bool kKeeps = false;

  using GroupHeader::GroupHeader;

  [[gnu::always_inline]] static __m128i values() {
    return _mm_setr_epi8(4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19);
  }
  [[gnu::always_inline]] __m512 any_scale(const uint8_t* header, int column) const {
    return scale(header, column);
  }
};

}  // namespace megamoe::isa_avx512_vnni
