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
  static void pack(const PackRows& p) {
    uint32_t* out = static_cast<uint32_t*>(p.out);
    const int64_t rows = p.rows;
    for_each_dword<Level>(p, 2,
                          [=](int64_t pair, int64_t r, uint32_t value) { out[pair * rows + r] = value; });
  }
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
  static void pack(const PackRows& p) {
    uint32_t* out = static_cast<uint32_t*>(p.out);
    const int64_t rows = p.rows;
    for_each_dword<Level>(
        p, 1, [=](int64_t quad, int64_t r, uint32_t value) { out[quad * rows + r] = value ^ 0x80808080u; });
  }
};

}  // namespace megamoe::kernel
