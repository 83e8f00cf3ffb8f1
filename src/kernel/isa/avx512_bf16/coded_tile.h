// Products straight from stored MX codes: the values and the order of sums are those of a strip, without the
// way through the cache. Decoding takes other ports of the CPU than the products.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernel/by_rows.h"
#include "kernel/by_strips.h"
#include "kernel/isa/avx512_bf16/decode.h"
#include "kernel/isa/avx512_bf16/special_scales.h"
#include "kernel/k_loop.h"
#include "kernel/kernels.h"

namespace megamoe::isa_avx512_bf16 {

/// By way of a strip of a few groups, where the last one is not whole.
template <class Codes>
void multiply_by_strips(const kernel::Tile& tile, int panel) {
  kernel::multiply_by_strips<kernel::PlainTile<gemm_bf16>>(tile, Codes::kCode, decode_mx<Codes>,
                                                           kernel::kRangeStep, panel);
}

/// Rows whose sums leave registers for tables, for the lower halves of byte tables at least, and for scales.
struct RowsBeside {
  int tables, half_tables, scales;
};
template <class Codes>
inline constexpr RowsBeside kRowsBeside = Codes::kBits == 4 ? RowsBeside{6, 0, 12} : RowsBeside{11, 13, 11};
/// The same for byte tables beside special scales.
inline constexpr int kRowsBesideSpecial = 6;
/// Rows whose sums leave registers for loaded nibbles until their last pair.
inline constexpr int kRowsBesideLoaded = 13;
/// Rows of two panels whose sums leave registers for the codes of both.
inline constexpr int kRowsBesideCodes = 4;
/// Rows of all panels whose sums leave registers for low scales, and for half of them.
inline constexpr int kRowsBesideLowScales = 7, kRowsBesideHalfScales = 8;

/// What the first row tile of a panel leaves to the others in the memory of Tile::kept, so that they neither
/// look for special scales and codes nor make words of scales.
struct PassedScales {
  static constexpr int64_t kGroupBytes = 64;
  int32_t* all;       ///< whether no group of the panel needs more
  std::byte* groups;  ///< ExponentScales::words of each

  explicit PassedScales(std::byte* memory)
      : all(reinterpret_cast<int32_t*>(memory)), groups(memory + kGroupBytes) {}
};
/// What a tile does with them.
enum class Passes { kNone, kLeaves, kTakes };

/// K a multiple of a group, kPanels panels at once: with few rows the sums of one wait for each other. Sums
/// has kRowCount, start, add(column halves of a pair of k, activations) and store. `room` is kScaleRoom bytes
/// for each panel, and 128 for codes.
template <class Level, class Codes, class Sums, int kPanels, Passes kPasses>
void tile_coded(const kernel::Tile& t, std::byte* room) {
  static_assert(kPanels == 1 || kPasses == Passes::kNone);
  constexpr int kRows = Sums::kRowCount;
  constexpr bool kBytewise = Codes::kBits == 8;
  constexpr bool kTall = kRows > kRowsBeside<Codes>.tables;
  constexpr bool kCachesScales = kRows > kRowsBeside<Codes>.scales;
  constexpr bool kKeepsCodes = !kBytewise && kRows > kRowsBesideLoaded;
  std::byte* const kept = room + kPanels * kScaleRoom;
  constexpr bool kTogether = kPanels > 1 && !kBytewise && kRows <= kRowsBesideCodes;
  // Up to three rows looking for infinities takes longer than masks.
  constexpr bool kLooksForSpecials = Codes::kCode == kernel::WeightCode::kE5M2 && kRows > 3;
  using Finite = std::conditional_t<kLooksForSpecials, FiniteE5M2Codes, Codes>;
  using CodeDecoder = Decoder<Finite, kTall, (kRows > kRowsBeside<Codes>.half_tables)>;
  constexpr int kPairs = CodeDecoder::kPairs;
  constexpr int64_t kBytes = kPairs * 2 * kernel::kPanelColumns * Codes::kBits / 8;
  const int64_t stride = kernel::stored_panel_bytes(Codes::kCode, kernel::Family::kBf16, t.k);
  const auto* codes = static_cast<const uint8_t*>(t.panel);
  const uint8_t* const end = codes + stride;
  const auto* a = static_cast<const int32_t*>(t.a);
  // Weights are read once in a call. CPUs on which this level is the fastest are AMD's.
  constexpr int64_t kStepsOfGroup = kernel::kMxGroup / 2 / kPairs;
  kernel::SpreadPrefetch<Level, kernel::Locality::kOnce> prefetch(
      t, t.k / kernel::kMxGroup * kStepsOfGroup * kernel::kPrefetchStride, 1);
  std::byte* passed = kPasses == Passes::kNone ? nullptr : PassedScales(t.kept).groups;
  bool all_usual = true;
  Sums sums[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) sums[p].start(t, 0);
  using Scales = std::conditional_t<kCachesScales, CachedScales<Finite>, ExponentScales<Finite>>;
  const auto multiply_group = [&]<class Values, bool kInOneGo, bool kUsual = false>(std::byte * scales)
      __attribute__((always_inline)) {
    const auto decoder = [&] {
      if constexpr (kBytewise) return typename Values::CodeDecoder(codes);
      return typename Values::CodeDecoder();
    }();
    Values values[kPanels];
    if constexpr (kUsual && kPasses != Passes::kNone) {
      const __m512i words = kPasses == Passes::kTakes ? _mm512_load_si512(scales) : Scales::words(codes);
      if constexpr (kPasses == Passes::kLeaves) _mm512_store_si512(scales, words);
      values[0].start(decoder, words, room);
    } else {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) values[p].start(decoder, codes + p * stride, room + p * kScaleRoom);
    }
    codes += kernel::kPanelColumns;
#pragma GCC unroll 1
    for (int pair = 0; pair < kernel::kMxGroup / 2; pair += kPairs) {
      prefetch.step();
      const auto load = [&](int p, int half) __attribute__((always_inline)) {
        return values[p].load(codes + p * stride, half);
      };
      if constexpr (kInOneGo) {
        const auto first0 = load(0, 0), second0 = load(0, 1), first1 = load(1, 0), second1 = load(1, 1);
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; ++i) {
          const __m512i both[2][2] = {{values[0].pair(first0, i, 0), values[0].pair(second0, i, 1)},
                                      {values[1].pair(first1, i, 0), values[1].pair(second1, i, 1)}};
          Sums::add(sums, both, a + i * kRows);
        }
      } else {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          asm("" : "+r"(a));  // load activations again: there are no registers to keep them in
          auto first = load(p, 0), second = kBytewise ? first : load(p, 1);
          if constexpr (kKeepsCodes) {
            _mm512_store_si512(kept, first);
            _mm512_store_si512(kept + 64, second);
          }
#pragma GCC unroll 4
          for (int i = 0; i < kPairs; ++i) {
            if constexpr (kKeepsCodes) first = loaded<true>(kept), second = loaded<true>(kept + 64);
            sums[p].add(values[p].pair(first, i, 0), values[p].pair(second, i, 1), a + i * kRows);
          }
        }
      }
      codes += kBytes;
      a += kPairs * kRows;
    }
  };
  constexpr bool kFull = kRows * kPanels > kRowsBesideLowScales,
                 kFuller = kRows * kPanels > kRowsBesideHalfScales;
  using Low = std::conditional_t<kBytewise, LowScales<Codes>, LeastNibbles<kFull, kFuller>>;
  // What special scales need takes registers as well.
  constexpr bool kTallest = kBytewise ? kRows > kRowsBesideSpecial : kTall;
  using SpecialDecoder = Decoder<Codes, kTallest, kTallest>;
  using LowValues = std::conditional_t<kBytewise, ScaledValues<SpecialDecoder, Low>, Low>;
  // A raised value may lose its exponent to the scale, as long as its sign stays.
  constexpr int kFirst = Finite::kRaised == 0 ? 1 - Codes::kLowest : -Codes::kLowest;
  while (codes != end) {
    if constexpr (kPasses == Passes::kTakes) {
      multiply_group.template operator()<ScaledValues<CodeDecoder, Scales>, false, true>(passed);
      passed += PassedScales::kGroupBytes;
      continue;
    }
    __mmask32 special = 0;
    bool infinite = false;
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      special = _kor_mask32(special, not_normal<Codes, kFirst>(codes + p * stride));
      if constexpr (kLooksForSpecials) infinite |= has_specials(codes + p * stride);
    }
    if constexpr (kPasses == Passes::kLeaves) all_usual &= special == 0 && !infinite;
    if (special == 0 && !infinite) [[likely]] {
      multiply_group.template operator()<ScaledValues<CodeDecoder, Scales>, kTogether, true>(passed);
    } else if (all_up_to(codes, Low::kLast) && all_up_to(codes + (kPanels - 1) * stride, Low::kLast)) {
      multiply_group.template operator()<LowValues, false>(passed);
    } else {
      multiply_group.template operator()<ScaledValues<SpecialDecoder, SaturatingScales<Codes>>, false>(
          passed);
    }
    if constexpr (kPasses != Passes::kNone) passed += PassedScales::kGroupBytes;
  }
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    sums[p].store(static_cast<float*>(t.c) + p * kRows * kernel::kPanelColumns);
  }
  if constexpr (kPasses == Passes::kLeaves) *PassedScales(t.kept).all = all_usual;
}

/// The functions for 1 .. kMaxRows rows, for two panels up to kPairedRows rows, and for tiles of kPassingRows
/// rows and more that pass scales on; 0: none do.
template <class Level, class Codes, template <int> class Sums, int kMaxRows, int kPairedRows,
          int kPassingRows = 0>
struct CodedTiles {
  static void run(const kernel::Tile& t) {
    if (t.k % kernel::kMxGroup != 0) {
      for (int p = 0; p < t.panels; ++p) multiply_by_strips<Codes>(t, p);
      return;
    }
    alignas(64) std::byte room[2 * kScaleRoom + 128];
    const auto at = static_cast<size_t>(t.rows - 1);
    if constexpr (kPassingRows != 0) {
      if (t.kept != nullptr) {
        const bool passes = t.rows >= kPassingRows;
        const PassedScales scales(t.kept);
        if (!t.decoded && passes) return kPassingByRows<Passes::kLeaves>[at](t, room);
        if (!t.decoded) *scales.all = 0;
        if (passes && *scales.all != 0) return kPassingByRows<Passes::kTakes>[at](t, room);
      }
    }
    (t.panels == 2 ? kByRows<2, kPairedRows>[at] : kByRows<1, kMaxRows>[at])(t, room);
  }

 private:
  template <int kPanels, int kMost>
  static constexpr auto kByRows = kernel::functions_by_rows<kMost>([]<int kRows>() {
    return &tile_coded<Level, Codes, Sums<kRows>, kPanels, Passes::kNone>;
  });
  template <Passes kPasses>
  static constexpr auto kPassingByRows = kernel::functions_by_rows<kMaxRows>([]<int kRows>() {
    return &tile_coded<Level, Codes, Sums<std::max(kRows, kPassingRows)>, 1, kPasses>;
  });
};

}  // namespace megamoe::isa_avx512_bf16
