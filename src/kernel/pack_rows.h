// Row tiles of activations in the orders the tile functions read them. Plain loops: packing is done once per
// row tile and read once per panel. `Level` is a type of the namespace of the calling level and keeps the
// copies apart.
#pragma once

#include "kernel/contract.h"

namespace megamoe::kernel {

constexpr size_t round_to_cache_line(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

/// bf16 -> float, [K rounded up to 2][rows].
template <class Level>
struct PackBf16AsFloat {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 1) / 2 * 2) * 4);
  }
  static void pack(const PackRows& p) {
    const std::byte* codes = static_cast<const std::byte*>(p.codes);
    uint32_t* out = static_cast<uint32_t*>(p.out);
    for (int r = 0; r < p.rows; ++r) {
      const uint16_t* row = reinterpret_cast<const uint16_t*>(codes + r * p.row_bytes);
      for (int64_t k = 0; k < p.k; ++k) out[k * p.rows + r] = static_cast<uint32_t>(row[k]) << 16;
      if (p.k % 2 != 0) out[p.k * p.rows + r] = 0;
    }
  }
};

/// bf16 pairs as they are, [ceil(K / 2)][rows] dwords.
template <class Level>
struct PackBf16Pairs {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 1) / 2) * 4);
  }
  static void pack(const PackRows& p) {
    const std::byte* codes = static_cast<const std::byte*>(p.codes);
    uint32_t* out = static_cast<uint32_t*>(p.out);
    for (int r = 0; r < p.rows; ++r) {
      const uint16_t* row = reinterpret_cast<const uint16_t*>(codes + r * p.row_bytes);
      for (int64_t pair = 0; pair < p.k / 2; ++pair) {
        out[pair * p.rows + r] = row[2 * pair] | static_cast<uint32_t>(row[2 * pair + 1]) << 16;
      }
      if (p.k % 2 != 0) out[p.k / 2 * p.rows + r] = row[p.k - 1];
    }
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
    const int8_t* codes = static_cast<const int8_t*>(p.codes);
    int16_t* out = static_cast<int16_t*>(p.out);
    const int64_t padded = (p.k + 3) / 4 * 4;
    for (int r = 0; r < p.rows; ++r) {
      const int8_t* row = codes + r * p.row_bytes;
      for (int64_t k = 0; k < padded; ++k) {
        const int64_t odd = k & 1, high = k >> 1 & 1;
        out[((k / 4 * 2 + odd) * p.rows + r) * 2 + high] = k < p.k ? row[k] : 0;
      }
    }
  }
};

/// s8 + 128 as u8, [ceil(K / 4)][rows][4].
template <class Level>
struct PackS8AsU8 {
  static size_t bytes(int rows, int64_t k) {
    return round_to_cache_line(static_cast<size_t>(rows) * static_cast<size_t>((k + 3) / 4) * 4);
  }
  static void pack(const PackRows& p) {
    const int8_t* codes = static_cast<const int8_t*>(p.codes);
    uint8_t* out = static_cast<uint8_t*>(p.out);
    const int64_t padded = (p.k + 3) / 4 * 4;
    for (int r = 0; r < p.rows; ++r) {
      const int8_t* row = codes + r * p.row_bytes;
      for (int64_t k = 0; k < padded; ++k) {
        out[(k / 4 * p.rows + r) * 4 + (k & 3)] = static_cast<uint8_t>((k < p.k ? row[k] : 0) + 128);
      }
    }
  }
};

}  // namespace megamoe::kernel
