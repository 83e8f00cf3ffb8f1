// Products straight from stored codes with scales per group of K: the values and the order of sums are those
// of GroupTile over a strip. The sums of all groups stay in the cache, so that tall tiles fit the registers.
#pragma once

#include <algorithm>
#include <bit>

#include "kernel/by_rows.h"
#include "kernel/group_tile.h"
#include "kernel/isa/avx512/group_header.h"
#include "kernel/isa/avx512_bf16/decode.h"
#include "kernel/isa/avx512_bf16/sums.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_bf16 {

/// E4M3 codes of whole pairs of k.
class E4M3GroupCodes : public isa_avx512::GroupHeader {
 public:
  static constexpr int kPairs = 1;
  using GroupHeader::GroupHeader;

  [[gnu::always_inline]] bool start(const uint8_t*) { return true; }
  [[gnu::always_inline]] auto load(const uint8_t* codes, int half) const {
    return decoder_.load(codes, half);
  }
  [[gnu::always_inline]] __m512i pair(const Decoder<PlainE4M3Codes, true>::Loaded& from, int pair,
                                      int half) const {
    return decoder_.pair(from, pair, half);
  }

 private:
  Decoder<PlainE4M3Codes, true> decoder_;
};

constexpr uint16_t bf16_of(int value) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
}

// int4 as code + 8: without zero points bit 4 of an index is of another code; with them an index is the
// difference, -16 .. 15.
inline constinit const NibbleTable kInt4Codes =
    NibbleTable::of([](size_t i) { return bf16_of(static_cast<int>(i % 16) - 8); });
inline constinit const NibbleTable kInt4Differences = NibbleTable::of(
    [](size_t i) { return bf16_of(i < 16 ? static_cast<int>(i) : static_cast<int>(i) - 32); });

template <bool kZeros>
class Int4GroupCodes : public isa_avx512::GroupHeader {
 public:
  static constexpr int kPairs = 4;
  using GroupHeader::GroupHeader;

  /// Whether the differences of this group have five bits.
  [[gnu::always_inline]] bool start(const uint8_t* header) {
    if constexpr (!kZeros) return true;
    offset_[0] = offsets(header, 0);
    offset_[1] = offsets(header, 16);
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(zero_bytes(header)));
    const __m256i eight = _mm256_set1_epi8(static_cast<char>(made_for(header, 8)));
    const __m256i most = _mm256_set1_epi8(static_cast<char>(made_for(header, 15)));
    return _mm256_cmpgt_epu8_mask(_mm256_add_epi8(bytes, eight), most) == 0;
  }
  [[gnu::always_inline]] __m512i load(const uint8_t* codes, int half) const {
    return exchanged_bytes(codes + 64 * half);
  }
  [[gnu::always_inline]] __m512i pair(__m512i from, int pair, int half) const {
    __m512i entries = nibble_pair(from, pair);
    if constexpr (!kZeros) return look_up(entries, kInt4Codes);
    asm("vpandd %1%{1to16%}, %0, %0" : "+v"(entries) : "m"(kLowNibbles));
    return look_up(_mm512_sub_epi16(entries, offset_[half]), kInt4Differences);
  }

 private:
  /// What codes of a column are too large by, in both words.
  [[gnu::always_inline]] __m512i offsets(const uint8_t* header, int column) const {
    const __m512i offset = _mm512_add_epi32(zeros(header, column), _mm512_set1_epi32(made_for(header, 8)));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, offset, _mm512_slli_epi32(offset, 16));
  }
  inline static constinit const int32_t kLowNibbles = 0x000f000f;
  __m512i offset_[2];
};

/// The whole of K by strips of a group each, for zero points that leave no five bits.
template <class Level, const kernel::Gemm& kGemm>
[[gnu::noinline]] void multiply_groups_by_strips(const kernel::Tile& tile, kernel::WeightCode code) {
  constexpr int64_t kMost = kernel::kGroupSizes[std::size(kernel::kGroupSizes) - 1];
  alignas(64) std::byte strip[kernel::panel_bytes(kernel::Family::kBf16, kMost)];
  alignas(64) float scales[kernel::kPanelColumns];
  const auto decode = isa_avx512::row_ops.decode[0][static_cast<int>(code)];
  kernel::Tile t = tile;
  kernel::DecodePanel d{tile.panel, 0, strip, tile.form, scales};
  t.panel = strip;
  t.group_scales = scales;
  t.prefetch = strip;
  t.prefetch_bytes = 0;
  for (; t.k_begin < tile.k; t.k_begin += t.group) {
    d.k_begin = t.k_begin;
    d.k = t.k = std::min(t.group, tile.k - t.k_begin);
    t.accumulate = t.k_begin > 0;
    decode(d);
    kernel::GroupTile<typename Level::Vector, kGemm, float, kMaxRows>::run(t);
  }
}

/// Returns whether every group had a form that it can read.
template <class Level, class Codes, class Sums, const kernel::Gemm& kGemm>
bool tile_coded_groups(const kernel::Tile& t) {
  constexpr int kRows = Sums::kRowCount;
  constexpr int kPairs = Codes::kPairs;
  constexpr int64_t kBytes = kPairs * 2 * kernel::kPanelColumns * (kPairs == 1 ? 8 : 4) / 8;
  using Groups = kernel::GroupTile<typename Level::Vector, kGemm, float, kMaxRows>;
  const auto stride = static_cast<int64_t>(Groups::stride(kRows, t.group));
  const auto scales_at = static_cast<int64_t>(Groups::scales_at(kRows, t.group));
  Codes coded(t.form);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const auto* a_group = static_cast<const std::byte*>(t.a);
  kernel::SpreadPrefetch<Level> prefetch(t, (t.k + 2 * kPairs - 1) / (2 * kPairs) * kernel::kPrefetchStride,
                                         1);
  bool readable = true;
  Sums sums;
  for (int64_t k = 0; k < t.k; k += t.group, a_group += stride) {
    readable &= coded.start(header);
    sums.start(t, 0);
    const auto* a = reinterpret_cast<const int32_t*>(a_group);
    const uint8_t* codes = header + coded.header_bytes();
    int64_t pairs = (std::min(t.group, t.k - k) + 1) / 2;
    for (; pairs >= kPairs; pairs -= kPairs, codes += kBytes, a += kPairs * kRows) {
      const auto first = coded.load(codes, 0), second = coded.load(codes, 1);
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
        sums.add(coded.pair(first, i, 0), coded.pair(second, i, 1), a + i * kRows);
      }
      prefetch.step();
    }
    if (pairs > 0) {
      for (int i = 0; i < pairs; ++i, a += kRows) {
        sums.add(coded.pair(coded.load(codes, 0), i, 0), coded.pair(coded.load(codes, 1), i, 1), a);
      }
      codes += kBytes;
    }
    const auto* const factors = reinterpret_cast<const float*>(a_group + scales_at);
    sums.add_scaled(t.row_scaled ? factors : nullptr, coded.scale(header, 0), coded.scale(header, 16), k == 0,
                    static_cast<float*>(t.c));
    header = codes;
  }
  return readable;
}

/// The functions for 1 .. kMostRows rows.
template <class Level, class Codes, template <int> class Sums, const kernel::Gemm& kGemm, int kMostRows>
struct CodedGroupTiles {
  static bool run(const kernel::Tile& t) { return kByRows[static_cast<size_t>(t.rows - 1)](t); }

 private:
  static constexpr auto kByRows = kernel::functions_by_rows<kMostRows>(
      []<int kRows>() { return &tile_coded_groups<Level, Codes, Sums<kRows>, kGemm>; });
};

}  // namespace megamoe::isa_avx512_bf16
