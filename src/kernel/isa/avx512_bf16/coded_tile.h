// Products of few rows straight from stored MX codes: the values and the order of sums are those of a strip,
// without the way through the cache.
#pragma once

#include <array>
#include <utility>

#include "kernel/isa/avx512_bf16/decode.h"

namespace megamoe::isa_avx512_bf16 {

template <class Scales, class Codes, class Sums>
[[gnu::always_inline]] inline void add_group(const PairDecoder<Codes>& decoder, const uint8_t* group,
                                             int64_t pairs, const int32_t*& a, Sums& sums) {
  constexpr int kPairBytes = 2 * kernel::kPanelColumns * Codes::kBits / 8;
  const Scales scales(group);
  const uint8_t* codes = group + kernel::kPanelColumns;
  for (int64_t pair = 0; pair < pairs; ++pair, codes += kPairBytes, a += Sums::kRowCount) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T1);
    const MarkedPair marked = decoder(codes);
    sums.add(scales(marked.columns[0], 0), scales(marked.columns[1], 1), a);
  }
}

/// Sums has kRowCount, start, add(column halves of a pair of k, activations) and store.
template <class Codes, class Sums>
void tile_coded(const kernel::Tile& t) {
  constexpr int64_t kGroupBytes = mx_group_bytes<Codes>();
  const PairDecoder<Codes> decoder;
  const auto* group = static_cast<const uint8_t*>(t.panel);
  const auto* a = static_cast<const int32_t*>(t.a);
  Sums sums;
  sums.start(t, 0);
  for (int64_t k = 0; k < t.k; k += kernel::kMxGroup, group += kGroupBytes) {
    const int64_t pairs = t.k - k < kernel::kMxGroup ? (t.k - k + 1) / 2 : int64_t{kernel::kMxGroup} / 2;
    if (all_values_normal<Codes>(group)) {
      add_group<AddedScales>(decoder, group, pairs, a, sums);
    } else {
      add_group<MultipliedScales>(decoder, group, pairs, a, sums);
    }
  }
  sums.store(t.c);
}

/// The functions for 1 .. kMaxRows rows.
template <class Codes, template <int> class Sums, int kMaxRows>
struct CodedTiles {
  static void run(const kernel::Tile& t) { kByRows[static_cast<size_t>(t.rows - 1)](t); }

 private:
  template <size_t... kIndex>
  static constexpr auto table(std::index_sequence<kIndex...>) {
    return std::array{tile_coded<Codes, Sums<static_cast<int>(kIndex) + 1>>...};
  }
  static constexpr auto kByRows = table(std::make_index_sequence<kMaxRows>{});
};

}  // namespace megamoe::isa_avx512_bf16
