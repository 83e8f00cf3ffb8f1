// Products straight from stored codes with scales per group of K, by fp32 multiply-add: the values and the
// order of sums are those of GroupTile over a strip. The sums of all groups stay in the cache.
#pragma once

#include <algorithm>

#include "kernel/group_tile.h"
#include "kernel/isa/avx512/coded_tile.h"
#include "kernel/isa/avx512/group_header.h"
#include "kernel/isa/avx512/sums.h"

namespace megamoe::isa_avx512 {

/// int4 as code + 8, from which zero points are taken off.
template <bool kZeros>
class Int4GroupCodes : public GroupHeader {
 public:
  static constexpr kernel::WeightCode kCode = kernel::WeightCode::kInt4Groups;
  static constexpr int kBits = 4;
  static constexpr int kStep = 8;
  using Loaded = E2M1Codes::Loaded;
  using GroupHeader::GroupHeader;

  /// What is read once for a group.
  struct Group {
    __m512 zero[2];
  };
  [[gnu::always_inline]] void start(const uint8_t* header, Group& group) const {
    if constexpr (kZeros) {
      group.zero[0] = _mm512_cvtepi32_ps(zeros(header, 0));
      group.zero[1] = _mm512_cvtepi32_ps(zeros(header, 16));
    }
  }
  [[gnu::always_inline]] static void load(const uint8_t* codes, Loaded& loaded) {
    E2M1Codes::load(codes, loaded);
  }
  [[gnu::always_inline]] void values(const Loaded& loaded, int k, const Group& group, __m512 (&w)[2]) const {
    const auto shift = static_cast<unsigned>(k % 4 * 8 + k / 4 * 4);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      w[half] = _mm512_permutexvar_ps(_mm512_srli_epi32(loaded[half], shift), values_);
      if constexpr (kZeros) w[half] = _mm512_sub_ps(w[half], group.zero[half]);
    }
  }
  static bool not_numbers(const uint8_t*) {
    return false;
  }

 private:
  __m512 values_ = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
};

class E4M3GroupCodes : public GroupHeader {
 public:
  static constexpr kernel::WeightCode kCode = kernel::WeightCode::kE4M3Groups;
  static constexpr int kBits = 8;
  static constexpr int kStep = 2;
  using Loaded = E4M3Codes::Loaded;
  using GroupHeader::GroupHeader;

  struct Group {};
  static void start(const uint8_t*, Group&) {}
  [[gnu::always_inline]] static void load(const uint8_t* codes, Loaded& loaded) {
    E4M3Codes::load(codes, loaded);
  }
  [[gnu::always_inline]] static void values(const Loaded& loaded, int k, const Group&, __m512 (&w)[2]) {
    E4M3Codes::values(loaded, k, w[0], w[1]);
    const __m512 raised = _mm512_set1_ps(1 << E4M3Codes::kRaised);
    w[0] = _mm512_mul_ps(w[0], raised);
    w[1] = _mm512_mul_ps(w[1], raised);
  }
  [[gnu::always_inline]] static bool not_numbers(const uint8_t* codes) {
    return E4M3Codes::not_numbers(codes);
  }
};

/// kPanels panels at once: with few rows the sums of one wait for each other.
template <class V, class Codes, class Sums, int kPanels>
void tile_coded_groups(const kernel::Tile& t) {
  constexpr int kRows = Sums::kRowCount, kStep = Codes::kStep;
  constexpr int64_t kBytes = kStep * kernel::kPanelColumns * Codes::kBits / 8;
  using Groups = kernel::GroupTile<V, gemm_bf16, float, kMaxRows>;
  const auto stride = static_cast<int64_t>(Groups::stride(kRows, t.group));
  const auto scales_at = static_cast<int64_t>(Groups::scales_at(kRows, t.group));
  const int64_t panel = kernel::stored_panel_bytes(Codes::kCode, kernel::Family::kBf16, t.k, t.form);
  const Codes coded(t.form);
  const auto* header = static_cast<const uint8_t*>(t.panel);
  const auto* a_group = static_cast<const std::byte*>(t.a);
  kernel::SpreadPrefetch<V> prefetch(t, (t.k + kStep - 1) / kStep * kernel::kPrefetchStride, 1);
  bool special = false;
  Sums sums[kPanels];
  typename Codes::Group groups[kPanels];
  for (int64_t begin = 0; begin < t.k; begin += t.group, a_group += stride) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      coded.start(header + p * panel, groups[p]);
      sums[p].start(t, 0);
    }
    const auto* a = reinterpret_cast<const typename Sums::Operand*>(a_group);
    const uint8_t* codes = header + coded.header_bytes();
    // Whole pairs of k were packed, with zeros behind the last one.
    int64_t left = (std::min(t.group, t.k - begin) + 1) / 2 * 2;
    typename Codes::Loaded loaded[kPanels];
    const auto load = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        coded.load(codes + p * panel, loaded[p]);
        special |= coded.not_numbers(codes + p * panel);
      }
      codes += kBytes;
    };
    const auto multiply = [&](int k) __attribute__((always_inline)) {
      __m512 w[kPanels][2];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) coded.values(loaded[p], k, groups[p], w[p]);
      Sums::add(sums, a, w);
      a += kRows;
      asm("" : "+r"(a));  // the next k after this one: there are registers for one
    };
    for (; left >= kStep; left -= kStep) {
      prefetch.step();
      load();
#pragma GCC unroll 8
      for (int k = 0; k < kStep; ++k) multiply(k);
    }
    if (left > 0) {
      load();
#pragma GCC unroll 8
      for (int k = 0; k < kStep; ++k) {
        if (k < left) multiply(k);
      }
    }
    const auto* const factors = reinterpret_cast<const float*>(a_group + scales_at);
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      sums[p].add_scaled(t.row_scaled ? factors : nullptr, coded.scale(header + p * panel, 0),
                         coded.scale(header + p * panel, 16), begin == 0,
                         static_cast<float*>(t.c) + p * kRows * kernel::kPanelColumns);
    }
    header = codes;
  }
  if (!special) return;
  for (int p = 0; p < kPanels; ++p) {
    kernel::multiply_by_strips<Groups>(t, Codes::kCode, bf16_decoder(Codes::kCode), t.group, p);
  }
}

/// The functions for 1 .. kMostRows rows, and for two panels up to kPairedRows rows.
template <class V, class Codes, template <int> class Sums, int kMostRows, int kPairedRows>
struct CodedGroupTiles {
  static void run(const kernel::Tile& t) {
    const auto at = static_cast<size_t>(t.rows - 1);
    (t.panels == 2 ? kByRows<2, kPairedRows>[at] : kByRows<1, kMostRows>[at])(t);
  }

 private:
  template <int kPanels, int kMost>
  static constexpr auto kByRows = kernel::functions_by_rows<kMost>([]<int kRows>() {
    return &tile_coded_groups<V, Codes, Sums<kRows>, kPanels>;
  });
};

}  // namespace megamoe::isa_avx512
