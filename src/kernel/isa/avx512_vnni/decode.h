// int4 codes as s8, the values of kernel/decode.h at the speed of memory: to strips, or straight into the
// product of a few rows.
#pragma once

#include <immintrin.h>

#include "kernel/by_rows.h"
#include "kernel/contract.h"
#include "kernel/k_loop.h"
#include "kernel/tile.h"

namespace megamoe::isa_avx512_vnni {

/// Calls row(first 16 columns, the others) for every dword row of the strip that `k` nibbles from `stored` on
/// stand for, and ahead(codes) before every 128 bytes of them. `kTight`: `row` leaves four registers, so that
/// the mask stays in memory and codes are loaded twice.
template <bool kTight, class Ahead, class Row>
[[gnu::always_inline]] inline void for_each_int4_row(const void* stored, int64_t k, Ahead ahead, Row row) {
  const __m512i values =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
  static constexpr int kNibbles = 0x0f0f0f0f;
  const auto low = [](__m512i both) __attribute__((always_inline)) {
    if constexpr (!kTight) return _mm512_and_si512(both, _mm512_set1_epi32(kNibbles));
    __m512i nibbles;
    asm("vpandd %2%{1to16%}, %1, %0" : "=v"(nibbles) : "v"(both), "m"(kNibbles));
    return nibbles;
  };
  const auto* codes = static_cast<const std::byte*>(stored);
  int64_t rows = (k + 3) / 4;
  for (; rows > 0; rows -= 2, codes += 2 * 64) {
    ahead(codes);
    row(_mm512_shuffle_epi8(values, low(_mm512_loadu_si512(codes))),
        _mm512_shuffle_epi8(values, low(_mm512_loadu_si512(codes + 64))));
    if (rows == 1) break;
    if constexpr (kTight) asm("" : "+r"(codes));
    row(_mm512_shuffle_epi8(values, low(_mm512_srli_epi16(_mm512_loadu_si512(codes), 4))),
        _mm512_shuffle_epi8(values, low(_mm512_srli_epi16(_mm512_loadu_si512(codes + 64), 4))));
  }
}

inline void decode_int4(const kernel::DecodePanel& d) {
  constexpr int kAhead = 4096;  // a panel is read once, as one stream
  auto* strip = static_cast<std::byte*>(d.strip);
  const auto ahead = [](const std::byte* codes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + 64), _MM_HINT_T1);
  };
  for_each_int4_row<false>(
      static_cast<const std::byte*>(d.stored) + d.k_begin / 8 * kernel::kPanelColumns * 4, d.k, ahead,
      [&](__m512i first, __m512i second) {
        _mm512_store_si512(strip, first);
        _mm512_store_si512(strip + 64, second);
        strip += 2 * 64;
      });
}

/// Sums has kRowCount, start, add(column halves of four k, activations) and store.
template <class Level, class Sums, kernel::Announce kAnnounce>
void tile_int4(const kernel::Tile& t) {
  using enum kernel::Announce;
  const auto* a = static_cast<const int32_t*>(t.a);
  const int64_t rows = (t.k + 7) / 8;
  Sums sums;
  sums.start(t, 0);
  constexpr int kRoomyRows = 12;
  constexpr bool kTight = Sums::kRowCount > kRoomyRows;
  const auto row = [&](__m512i first, __m512i second) __attribute__((always_inline)) {
    sums.add(first, second, a);
    a += Sums::kRowCount;
  };
  if constexpr (kAnnounce == kStream) {
    const auto* codes = static_cast<const std::byte*>(t.panel);
    int64_t k = t.k;
    for (const kernel::StreamAhead::Part& part : kernel::StreamAhead(t, rows)) {
      for_each_int4_row<kTight>(
          codes, k < 8 * part.rows ? k : 8 * part.rows,
          [&](const std::byte* at)
              __attribute__((always_inline)) { kernel::StreamAhead::announce(at, part.distance); },
          row);
      codes += part.rows * kernel::StreamAhead::kRowBytes;
      k -= 8 * part.rows;
    }
  } else {
    constexpr auto kLocality = kAnnounce == kOnce ? kernel::Locality::kOnce : kernel::Locality::kCaches;
    kernel::SpreadPrefetch<Level, kLocality> prefetch(t, rows * kernel::kPrefetchStride, 1);
    for_each_int4_row<kTight>(
        t.panel, t.k, [&](const std::byte*) { prefetch.step(); }, row);
  }
  sums.store(t.c);
}

/// The functions for 1 .. kMaxRows rows.
template <class Level, template <int> class Sums, int kMaxRows>
struct Int4Tiles {
  static void run(const kernel::Tile& t) {
    using enum kernel::Announce;
    const auto row = static_cast<size_t>(t.rows - 1);
    if (t.ahead > 0) return kByRows<kStream>[row](t);
    (t.read_once ? kByRows<kOnce> : kByRows<kCaches>)[row](t);
  }

 private:
  template <kernel::Announce kAnnounce>
  static constexpr auto kByRows = kernel::functions_by_rows<kMaxRows>([]<int kRows>() {
    return &tile_int4<Level, Sums<kRows>, kAnnounce>;
  });
};

}  // namespace megamoe::isa_avx512_vnni
