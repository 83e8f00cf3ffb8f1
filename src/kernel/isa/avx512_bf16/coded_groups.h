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

/// Up to so many rows two panels are multiplied at once.
inline constexpr int kPairedGroupRows = 4;
/// Rows whose sums leave registers for the tables: two loads a cycle are fewer than such tiles would need.
inline constexpr int kRoomyRows = 8;

/// E4M3 codes of whole pairs of k.
template <bool kTall>
class E4M3GroupCodes : public isa_avx512::GroupHeader {
 public:
  static constexpr int kPairs = 1;
  using GroupHeader::GroupHeader;

  /// What is read once for a group.
  struct Group {};
  [[gnu::always_inline]] static bool start(const uint8_t*, Group&) { return true; }
  [[gnu::always_inline]] auto load(const uint8_t* codes, int half) const {
    return decoder_.load(codes, half);
  }
  [[gnu::always_inline]] __m512i pair(const typename Decoder<PlainE4M3Codes, kTall>::Loaded& from, int pair,
                                      int half, const Group&) const {
    return decoder_.pair(from, pair, half);
  }

 private:
  Decoder<PlainE4M3Codes, kTall> decoder_;
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

/// What decodes nibbles: in registers, or in memory where a tall tile needs them.
template <bool kTall>
class NibbleDecoder {
 public:
  [[gnu::always_inline]] explicit NibbleDecoder(const NibbleTable& table)
      : order_(_mm512_load_si512(table.order)), values_(_mm512_load_si512(table.values)) {}

  [[gnu::always_inline]] __m512i load(const uint8_t* codes) const {
    __m512i words;  // in assembly: with the intrinsic, g++ 12 copies the codes to the stack
    asm("vpshufb %2, %1, %0" : "=v"(words) : "v"(_mm512_loadu_si512(codes)), "v"(order_));
    return words;
  }
  [[gnu::always_inline]] __m512i low(__m512i words) const { return _mm512_and_si512(words, mask_); }
  [[gnu::always_inline]] __m512i look_up(__m512i entries) const {
    return _mm512_permutexvar_epi16(entries, values_);
  }

 private:
  __m512i order_, values_, mask_ = _mm512_set1_epi16(15);
};
template <>
class NibbleDecoder<true> {
 public:
  [[gnu::always_inline]] explicit NibbleDecoder(const NibbleTable& table) : table_(table) {}

  [[gnu::always_inline]] static __m512i load(const uint8_t* codes) { return exchanged_bytes(codes); }
  [[gnu::always_inline]] static __m512i low(__m512i words) {
    asm("vpandd %1%{1to16%}, %0, %0" : "+v"(words) : "m"(kLowNibbles));
    return words;
  }
  [[gnu::always_inline]] __m512i look_up(__m512i entries) const {
    return isa_avx512_bf16::look_up(entries, table_);
  }

 private:
  inline static constinit const int32_t kLowNibbles = 0x000f000f;
  const NibbleTable& table_;
};

template <bool kZeros, bool kTall>
class Int4GroupCodes : public isa_avx512::GroupHeader {
 public:
  static constexpr int kPairs = 4;
  using GroupHeader::GroupHeader;

  struct Group {
    __m512i offset[2];
  };
  /// Whether the differences of this group have five bits.
  [[gnu::always_inline]] bool start(const uint8_t* header, Group& group) const {
    if constexpr (!kZeros) return true;
    group.offset[0] = offsets(header, 0);
    group.offset[1] = offsets(header, 16);
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(zero_bytes(header)));
    const __m256i eight = _mm256_set1_epi8(static_cast<char>(made_for(header, 8)));
    const __m256i most = _mm256_set1_epi8(static_cast<char>(made_for(header, 15)));
    return _mm256_cmpgt_epu8_mask(_mm256_add_epi8(bytes, eight), most) == 0;
  }
  [[gnu::always_inline]] __m512i load(const uint8_t* codes, int half) const {
    return decoder_.load(codes + 64 * half);
  }
  [[gnu::always_inline]] __m512i pair(__m512i from, int pair, int half, const Group& group) const {
    const __m512i entries = nibble_pair(from, pair);
    if constexpr (!kZeros) return decoder_.look_up(entries);
    return decoder_.look_up(_mm512_sub_epi16(decoder_.low(entries), group.offset[half]));
  }

 private:
  /// What codes of a column are too large by, in both words.
  [[gnu::always_inline]] __m512i offsets(const uint8_t* header, int column) const {
    const __m512i offset = _mm512_add_epi32(zeros(header, column), _mm512_set1_epi32(made_for(header, 8)));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, offset, _mm512_slli_epi32(offset, 16));
  }
  NibbleDecoder<kTall> decoder_{kZeros ? kInt4Differences : kInt4Codes};
};

/// kPanels panels at once: with few rows the sums of one wait for each other. Returns whether every group had
/// a form that it can read.
template <class Level, class Codes, class Sums, const kernel::Gemm& kGemm, int kPanels>
bool tile_coded_groups(const kernel::Tile& t) {
  constexpr int kRows = Sums::kRowCount;
  constexpr int kPairs = Codes::kPairs;
  constexpr int64_t kBytes = kPairs * 2 * kernel::kPanelColumns * (kPairs == 1 ? 8 : 4) / 8;
  constexpr auto kCode = kPairs == 1 ? kernel::WeightCode::kE4M3Groups : kernel::WeightCode::kInt4Groups;
  using Groups = kernel::GroupTile<typename Level::Vector, kGemm, float, kMaxRows>;
  const auto stride = static_cast<int64_t>(Groups::stride(kRows, t.group));
  const auto scales_at = static_cast<int64_t>(Groups::scales_at(kRows, t.group));
  const int64_t panel = kernel::stored_panel_bytes(kCode, kernel::Family::kBf16, t.k, t.form);
  const Codes coded(t.form);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const auto* a_group = static_cast<const std::byte*>(t.a);
  kernel::SpreadPrefetch<Level, kernel::Locality::kOnce> prefetch(
      t, (t.k + 2 * kPairs - 1) / (2 * kPairs) * kernel::kPrefetchStride, 1);
  bool readable = true;
  Sums sums[kPanels];
  typename Codes::Group groups[kPanels];
  for (int64_t k = 0; k < t.k; k += t.group, a_group += stride) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      readable &= coded.start(header + p * panel, groups[p]);
      sums[p].start(t, 0);
    }
    const auto* a = reinterpret_cast<const int32_t*>(a_group);
    const uint8_t* codes = header + coded.header_bytes();
    int64_t pairs = (std::min(t.group, t.k - k) + 1) / 2;
    for (; pairs >= kPairs; pairs -= kPairs, codes += kBytes, a += kPairs * kRows) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        asm("" : "+r"(a));  // load activations again: there are no registers to keep them in
        const auto first = coded.load(codes + p * panel, 0), second = coded.load(codes + p * panel, 1);
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; ++i) {
          sums[p].add(coded.pair(first, i, 0, groups[p]), coded.pair(second, i, 1, groups[p]), a + i * kRows);
        }
      }
      prefetch.step();
    }
    if (pairs > 0) {
      for (int i = 0; i < pairs; ++i, a += kRows) {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          const uint8_t* from = codes + p * panel;
          asm("" : "+r"(from), "+r"(a));  // and the codes
          sums[p].add(coded.pair(coded.load(from, 0), i, 0, groups[p]),
                      coded.pair(coded.load(from, 1), i, 1, groups[p]), a);
        }
      }
      codes += kBytes;
    }
    const auto* const factors = reinterpret_cast<const float*>(a_group + scales_at);
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      sums[p].add_scaled(t.row_scaled ? factors : nullptr, coded.scale(header + p * panel, 0),
                         coded.scale(header + p * panel, 16), k == 0,
                         static_cast<float*>(t.c) + p * kRows * kernel::kPanelColumns);
    }
    header = codes;
  }
  return readable;
}

/// The functions for 1 .. kMostRows rows, and for two panels up to kPairedGroupRows rows. Codes<kTall>
/// decodes.
template <class Level, template <bool> class Codes, template <int> class Sums, const kernel::Gemm& kGemm,
          int kMostRows>
struct CodedGroupTiles {
  static bool run(const kernel::Tile& t) {
    const auto at = static_cast<size_t>(t.rows - 1);
    return (t.panels == 2 ? kByRows<2, kPairedGroupRows>[at] : kByRows<1, kMostRows>[at])(t);
  }

 private:
  template <int kPanels, int kMost>
  static constexpr auto kByRows = kernel::functions_by_rows<kMost>([]<int kRows>() {
    return &tile_coded_groups<Level, Codes<(kRows > kRoomyRows)>, Sums<kRows>, kGemm, kPanels>;
  });
};

}  // namespace megamoe::isa_avx512_bf16
