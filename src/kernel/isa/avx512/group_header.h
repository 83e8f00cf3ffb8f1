// What stands before the codes of a group, as the coded tiles of the 512-bit levels read it. Everything is
// inlined: a symbol would belong to one level.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"

namespace megamoe::isa_avx512 {

/// The offsets of a GroupForm, looked up once for a tile.
class GroupHeader {
 public:
  [[gnu::always_inline]] explicit GroupHeader(const kernel::GroupForm& form)
      : type_(form.scales), zeros_at_(form.scale_bytes()), bytes_(form.header_bytes()) {}

  [[gnu::always_inline]] int64_t header_bytes() const { return bytes_; }
  [[gnu::always_inline]] bool has_zeros() const { return bytes_ != zeros_at_; }
  [[gnu::always_inline]] const uint8_t* zero_bytes(const uint8_t* header) const { return header + zeros_at_; }
  /// 16 zero points as dwords.
  [[gnu::always_inline]] __m512i zeros(const uint8_t* header, int column) const {
    return _mm512_cvtepi8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(zero_bytes(header) + column)));
  }
  /// 16 scales, exact as float.
  [[gnu::always_inline]] __m512 scale(const uint8_t* header, int column) const {
    if (type_ == DType::kFloat32) return _mm512_loadu_ps(header + 4 * column);
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(header + 2 * column));
    if (type_ == DType::kFloat16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }

 private:
  DType type_;
  int64_t zeros_at_, bytes_;
};

}  // namespace megamoe::isa_avx512
