// Every AMX instruction of the library. Extended assembly with a memory clobber: the tile intrinsics of
// g++ 12 do not tell the compiler what memory they read and write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/contract.h"

namespace megamoe::isa_amx {

/// Shape of the eight tile registers: rows, and bytes per row.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

/// Sets the shapes and zeroes all tiles.
inline void configure(const TileConfig& config) {
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline void release() {
  asm volatile("tilerelease" ::: "memory");
}
template <int kTile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
inline void load(const void* from, ptrdiff_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <int kTile>
inline void store(void* to, ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}
/// C += A x B: over bfloat16 with two k per dword, or over signed bytes with four.
template <kernel::Family kFamily, int kC, int kA, int kB>
inline void dot() {
  if constexpr (kFamily == kernel::Family::kBf16) {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  } else {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
}

}  // namespace megamoe::isa_amx
