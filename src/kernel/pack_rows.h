// Row tiles of activations in the orders the tile functions read them. Plain loops: packing is done once per
// row tile and read once per panel. `Level` is a type of the namespace of the calling level and keeps the
// copies apart.
#pragma once

#include <bit>

#include "kernel/contract.h"

namespace megamoe::kernel {

static_assert(std::endian::native == std::endian::little, "dwords of codes are read as integers");

constexpr size_t round_to_cache_line(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// Calls write(dword, row, value) for the code dwords of every row; codes past K are zero. A cache line of
/// one row after the other, so that neither the reads nor the strided writes leave the first cache.
template <class Level, class Write>
void for_each_dword(const PackRows& p, int64_t code_bytes, Write write) {
  constexpr int64_t kBlock = 16;
  const std::byte* codes = static_cast<const std::byte*>(p.codes);
  const int64_t whole = p.k * code_bytes / 4;
  const int64_t tail_bytes = p.k * code_bytes % 4;
  for (int64_t first = 0; first < whole; first += kBlock) {
    const int64_t last = first + kBlock < whole ? first + kBlock : whole;
    for (int r = 0; r < p.rows; ++r) {
      const std::byte* row = codes + r * p.row_bytes;
      for (int64_t d = first; d < last; ++d) {
        uint32_t value;
        __builtin_memcpy(&value, row + 4 * d, 4);
        write(d, r, value);
      }
    }
  }
  if (tail_bytes == 0) return;
  for (int r = 0; r < p.rows; ++r) {
    uint32_t value = 0;
    __builtin_memcpy(&value, codes + r * p.row_bytes + 4 * whole, static_cast<size_t>(tail_bytes));
    write(whole, r, value);
  }
}

using FourDwords __attribute__((vector_size(16))) = uint32_t;

/// The first `dwords` dwords, a multiple of 4, of each of up to 3 rows, as below.
template <class Level, int kRows>
void interleave_dwords(const std::byte* codes, ptrdiff_t row_bytes, int64_t dwords, uint32_t flip,
                       uint32_t* out) {
  using Four = FourDwords;
  for (int64_t d = 0; d < dwords; d += 4, codes += sizeof(Four), out += 4 * kRows) {
    Four in[kRows], mixed[kRows];
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) {
      __builtin_memcpy(&in[r], codes + r * row_bytes, sizeof(Four));
      in[r] ^= flip;
    }
    if constexpr (kRows == 1) mixed[0] = in[0];
    if constexpr (kRows == 2) {
      mixed[0] = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      mixed[1] = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    }
    if constexpr (kRows == 3) {
      const Four first = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Four middle = __builtin_shufflevector(in[1], in[2], 1, 5, 2, 6);
      const Four last = __builtin_shufflevector(in[0], in[1], 3, 7, 3, 7);
      mixed[0] = __builtin_shufflevector(first, in[2], 0, 1, 4, 2);
      mixed[1] = __builtin_shufflevector(middle, in[0], 0, 1, 6, 2);
      mixed[2] = __builtin_shufflevector(in[2], last, 2, 4, 5, 3);
    }
#pragma GCC unroll 3
    for (int r = 0; r < kRows; ++r) __builtin_memcpy(out + 4 * r, &mixed[r], sizeof(Four));
  }
}

/// Code dwords [dword][rows], each XORed with `flip`: a transpose, 4 rows x 4 dwords at a time.
template <class Level>
void transpose_dwords(const PackRows& p, int64_t code_bytes, uint32_t flip) {
  using Four = FourDwords;
  constexpr int64_t kBlock = 16;  // a cache line of every row
  const std::byte* codes = static_cast<const std::byte*>(p.codes);
  uint32_t* const out = static_cast<uint32_t*>(p.out);
  const int64_t rows = p.rows;
  const int64_t quads = p.k * code_bytes / 16;
  if (rows == 1) interleave_dwords<Level, 1>(codes, p.row_bytes, 4 * quads, flip, out);
  if (rows == 2) interleave_dwords<Level, 2>(codes, p.row_bytes, 4 * quads, flip, out);
  if (rows == 3) interleave_dwords<Level, 3>(codes, p.row_bytes, 4 * quads, flip, out);
  for (int64_t first = 0; first < 4 * quads && rows >= 4; first += kBlock) {
    const int64_t last = first + kBlock < 4 * quads ? first + kBlock : 4 * quads;
    for (int64_t done = 0; done < rows; done += 4) {
      const int64_t r = done + 4 <= rows ? done : rows - 4;  // the last four overlap
      const std::byte* row = codes + r * p.row_bytes;
      for (int64_t d = first; d < last; d += 4) {
        Four in[4];
        for (int i = 0; i < 4; ++i) __builtin_memcpy(&in[i], row + i * p.row_bytes + 4 * d, sizeof(Four));
        const Four low0 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
        const Four low1 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
        const Four high0 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
        const Four high1 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
        const Four turned[4] = {__builtin_shufflevector(low0, low1, 0, 1, 4, 5) ^ flip,
                                __builtin_shufflevector(low0, low1, 2, 3, 6, 7) ^ flip,
                                __builtin_shufflevector(high0, high1, 0, 1, 4, 5) ^ flip,
                                __builtin_shufflevector(high0, high1, 2, 3, 6, 7) ^ flip};
        for (int i = 0; i < 4; ++i) __builtin_memcpy(out + (d + i) * rows + r, &turned[i], sizeof(Four));
      }
    }
  }
  PackRows tail = p;  // the dwords that do not fill a vector
  tail.codes = codes + 16 * quads;
  tail.k = p.k - 16 * quads / code_bytes;
  uint32_t* const end = out + 4 * quads * rows;
  for_each_dword<Level>(tail, code_bytes,
                        [=](int64_t d, int64_t r, uint32_t value) { end[d * rows + r] = value ^ flip; });
}

/// bf16 -> float, [K rounded up to 2][rows].
template <class Level>
struct PackBf16AsFloat {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 1) / 2) * 8);
  }
  static void pack(const PackRows& p) {
    float* out = static_cast<float*>(p.out);
    const int64_t rows = p.rows;
    for_each_dword<Level>(p, 2, [=](int64_t pair, int64_t r, uint32_t value) {
      out[2 * pair * rows + r] = __builtin_bit_cast(float, value << 16);
      out[(2 * pair + 1) * rows + r] = __builtin_bit_cast(float, value & 0xffff0000u);
    });
  }
};

/// bf16 pairs as they are, [ceil(K / 2)][rows] dwords.
template <class Level>
struct PackBf16Pairs {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 1) / 2) * 4);
  }
  static void pack(const PackRows& p) { transpose_dwords<Level>(p, 2, 0); }
};

/// s8 -> float, [K rounded up to 4][rows].
template <class Level>
struct PackS8AsFloat {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 3) / 4) * 16);
  }
  static void pack(const PackRows& p) {
    float* out = static_cast<float*>(p.out);
    const int64_t rows = p.rows;
    for_each_dword<Level>(p, 1, [=](int64_t quad, int64_t r, uint32_t value) {
      for (int i = 0; i < 4; ++i) {
        out[(4 * quad + i) * rows + r] = static_cast<float>(static_cast<int8_t>(value >> 8 * i));
      }
    });
  }
};

/// s8 -> s16, [ceil(K / 4)][2][rows] pairs: first k 0 and 2, then k 1 and 3 of each four. That is the order
/// in which two shifts widen the four bytes of a weight dword.
template <class Level>
struct PackS8AsS16 {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 3) / 4) * 8);
  }
  static void pack(const PackRows& p) {
    uint32_t* out = static_cast<uint32_t*>(p.out);
    const int64_t rows = p.rows;
    for_each_dword<Level>(p, 1, [=](int64_t quad, int64_t r, uint32_t value) {
      out[2 * quad * rows + r] = pair(value, value >> 16);
      out[(2 * quad + 1) * rows + r] = pair(value >> 8, value >> 24);
    });
  }

 private:
  /// The low bytes of both, each as s16.
  static uint32_t pair(uint32_t low, uint32_t high) {
    const auto widen = [](uint32_t byte) {
      return static_cast<uint32_t>(int32_t{static_cast<int8_t>(byte)});
    };
    return (widen(low) & 0xffffu) | widen(high) << 16;
  }
};

/// s8 + 128 as u8, [ceil(K / 4)][rows][4].
template <class Level>
struct PackS8AsU8 {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 3) / 4) * 4);
  }
  static void pack(const PackRows& p) { transpose_dwords<Level>(p, 1, 0x80808080u); }
};

}  // namespace megamoe::kernel
