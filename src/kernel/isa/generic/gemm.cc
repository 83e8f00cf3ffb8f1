// Matrix tiles of the generic level: compiler vectors of 16 bytes, which every architecture has or imitates.
#include <cstring>

#include "kernel/contract.h"
#include "kernel/kernels.h"
#include "kernel/pack_rows.h"
#include "kernel/tile.h"

namespace megamoe::isa_generic {
namespace {

using kernel::kPanelColumns;
struct Level;
using Float4 __attribute__((vector_size(16))) = float;
using Uint4 __attribute__((vector_size(16))) = uint32_t;
using Int4 __attribute__((vector_size(16))) = int32_t;

constexpr int kMaxRows = 4;
constexpr int kColumnsAtOnce = 8;  // accumulators of 4 rows x 8 columns stay in 16 registers
constexpr int kVectors = kColumnsAtOnce / 4;

Uint4 load_dwords(const uint32_t* p) {
  Uint4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

/// Rows of C from and to memory; Vector is Float4 or Int4.
template <class Vector, int kRows>
[[gnu::always_inline]] inline void load_rows(Vector (&c)[kRows][kVectors], const void* from) {
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(c[r], static_cast<const uint32_t*>(from) + r * kPanelColumns, sizeof(c[r]));
  }
}
template <class Vector, int kRows>
[[gnu::always_inline]] inline void store_rows(const Vector (&c)[kRows][kVectors], void* to) {
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(static_cast<uint32_t*>(to) + r * kPanelColumns, c[r], sizeof(c[r]));
  }
}

template <int kRows>
struct Bf16Sums {
  using Operand = float;
  static constexpr int kColumns = kColumnsAtOnce;
  static constexpr int kOperands = 2;
  Float4 c[kRows][kVectors] = {};

  void start(const kernel::Tile&, int) {}
  [[gnu::always_inline]] void load(const void* from) { load_rows(c, from); }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    for (int j = 0; j < kVectors; ++j) {
      const Uint4 w = load_dwords(weights + 4 * j);
      const Float4 even = reinterpret_cast<Float4>(w << 16);
      const Float4 odd = reinterpret_cast<Float4>(w & 0xffff0000u);
      for (int r = 0; r < kRows; ++r) {
        c[r][j] = c[r][j] + even * a[r];
        c[r][j] = c[r][j] + odd * a[kRows + r];
      }
    }
  }
  [[gnu::always_inline]] void store(void* to) const { store_rows(c, to); }
};

/// Products and sums in float are exact as long as they are integers up to 2^24, which 1024 products are. No
/// integer multiplication of this width exists in the x86-64 baseline.
template <int kRows>
struct S8Sums {
  using Operand = float;
  static constexpr int kColumns = kColumnsAtOnce;
  static constexpr int kOperands = 4;
  static constexpr int64_t kMostSteps = 1024 / 4;
  Int4 total[kRows][kVectors] = {};
  Float4 c[kRows][kVectors] = {};

  void start(const kernel::Tile&, int) {}
  [[gnu::always_inline]] void load(const void* from) { load_rows(total, from); }
  [[gnu::always_inline]] void step(const uint32_t* weights, const Operand* a) {
    for (int j = 0; j < kVectors; ++j) {
      const Uint4 w = load_dwords(weights + 4 * j);
      for (int i = 0; i < 4; ++i) {
        // Sign extension of byte i: up to the top, then down by an arithmetic shift.
        const Int4 code = reinterpret_cast<Int4>(w << (24 - 8 * i)) >> 24;
        const Float4 x = __builtin_convertvector(code, Float4);
        for (int r = 0; r < kRows; ++r) c[r][j] = c[r][j] + x * a[i * kRows + r];
      }
    }
  }
  [[gnu::always_inline]] void flush() {
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kVectors; ++j) {
        total[r][j] += __builtin_convertvector(c[r][j], Int4);
        c[r][j] = Float4{};
      }
    }
  }
  [[gnu::always_inline]] void store(void* to) const { store_rows(total, to); }
};

}  // namespace

constinit const kernel::Gemm gemm_bf16 = {
    .name = "bf16_f32_4x32_generic",
    .isa = Isa::kGeneric,
    .family = kernel::Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackBf16AsFloat<Level>::bytes,
    .pack_rows = kernel::PackBf16AsFloat<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kBf16, Bf16Sums, kMaxRows>::run,
};
constinit const kernel::Gemm gemm_s8 = {
    .name = "s8_s32_4x32_generic",
    .isa = Isa::kGeneric,
    .family = kernel::Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = kernel::PackS8AsFloat<Level>::bytes,
    .pack_rows = kernel::PackS8AsFloat<Level>::pack,
    .tile = kernel::TileFunctions<Level, kernel::Family::kS8, S8Sums, kMaxRows>::run,
};

}  // namespace megamoe::isa_generic
