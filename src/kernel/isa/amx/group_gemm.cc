// Products with a scale per group of K by AMX: the sum of a group comes from the accumulator tiles, where it
// began at zero, and is scaled and added in float. Few rows of 4-bit codes, whose strips would take longer to
// make than to multiply, go to the integer tiles of a lower level; sums of integers are the same.
#include <immintrin.h>

#include <algorithm>

#include "kernel/group_tile.h"
#include "kernel/isa/amx/product.h"
#include "kernel/isa/avx512/group_floats.h"
#include "kernel/kernels.h"

namespace megamoe::isa_amx {
namespace {

using kernel::Family;
using kernel::kPanelColumns;

struct Level {};
using F32 = isa_avx512::GroupFloats<Level>;

/// Up to so many rows from codes. All forms of int4 are beside E2M1 in the tiles that read them.
constexpr int kCodedRows = 7;
const kernel::Gemm& coded_gemm() {
  return isa_avx512_bf16::group_gemm_s8;
}

/// A packed tile: for each group its codes in blocks of a tile row of k or of the group, whichever is
/// shorter, then the factors of the rows. Behind those of a few s8 rows, the rows as coded_gemm() reads them.
template <Family kFamily>
struct GroupRows {
  using Sum = std::conditional_t<kFamily == Family::kS8, int32_t, float>;

  static int64_t block_bytes(int64_t group) {
    return std::min<int64_t>(group * code_bytes(kFamily), kTileRowBytes);
  }
  static size_t factors_at(int rows, int64_t group) {
    return kernel::round_to_cache_line(static_cast<size_t>(rows * group * code_bytes(kFamily)));
  }
  static size_t stride(int rows, int64_t group) {
    return factors_at(rows, group) + kernel::round_to_cache_line(static_cast<size_t>(rows) * sizeof(float));
  }
  static size_t own_bytes(int rows, int64_t k) {
    size_t most = 0;
    for (const int64_t group : kernel::kGroupSizes) {
      most = std::max(most, static_cast<size_t>(kernel::groups_of(k, group)) * stride(rows, group));
    }
    return most;
  }
  static bool has_coded(int rows) { return kFamily == Family::kS8 && rows <= kCodedRows; }
  static size_t bytes(int rows, int64_t k) {
    return own_bytes(rows, k) + (has_coded(rows) ? coded_gemm().packed_bytes(rows, k) : 0);
  }

  static void pack(const kernel::PackRows& p) {
    auto* out = static_cast<std::byte*>(p.out);
    const auto* codes = static_cast<const std::byte*>(p.codes);
    const auto* scales = reinterpret_cast<const std::byte*>(p.scales);
    for (int64_t begin = 0; begin < p.k; begin += p.group, out += stride(p.rows, p.group)) {
      pack_blocks(codes + begin * code_bytes(kFamily), p.row_bytes, p.rows,
                  std::min(p.group, p.k - begin) * code_bytes(kFamily), block_bytes(p.group), out);
      auto* const factors = reinterpret_cast<float*>(out + factors_at(p.rows, p.group));
      for (int r = 0; r < p.rows && scales != nullptr; ++r) {
        factors[r] = reinterpret_cast<const float*>(scales + r * p.scale_bytes)[begin / p.group];
      }
    }
    if (!has_coded(p.rows)) return;
    kernel::PackRows coded = p;
    coded.out = static_cast<std::byte*>(p.out) + own_bytes(p.rows, p.k);
    coded_gemm().pack_rows(coded);
  }
};

template <Family kFamily, bool kTwoHalves>
void tile_groups(const kernel::Tile& t) {
  using Rows = GroupRows<kFamily>;
  const size_t stride = Rows::stride(t.rows, t.group), factors_at = Rows::factors_at(t.rows, t.group);
  const auto* a = static_cast<const std::byte*>(t.a) + static_cast<size_t>(t.k_begin / t.group) * stride;
  const auto* panel = static_cast<const std::byte*>(t.panel);
  kernel::SpreadPrefetch<F32> prefetch(t, kernel::panel_bytes(kFamily, t.k) / kPanelRowBytes, 1);
  Product<kFamily, kTwoHalves> product(t.rows, Rows::block_bytes(t.group));
  alignas(64) typename Rows::Sum sums[kMaxRows * kPanelColumns];
  for (int64_t begin = 0; begin < t.k; begin += t.group, a += stride) {
    const int64_t bytes = kernel::panel_bytes(kFamily, std::min(t.group, t.k - begin));
    product.zero_sums();
    product.add(a, panel, bytes / kPanelRowBytes, prefetch);
    product.store_sums(sums);
    const auto* const factors = t.row_scaled ? reinterpret_cast<const float*>(a + factors_at) : nullptr;
    kernel::add_scaled_group<F32>(sums, t.rows, t.group_scales + begin / t.group * kPanelColumns, factors,
                                  begin == 0 && !t.accumulate, static_cast<float*>(t.c));
    panel += bytes;
  }
  release();
}

template <Family kFamily>
void run(const kernel::Tile& t) {
  t.rows > kTileRows ? tile_groups<kFamily, true>(t) : tile_groups<kFamily, false>(t);
}

template <kernel::WeightCode kCode>
void run_codes(const kernel::Tile& t) {
  kernel::Tile coded = t;
  coded.a = static_cast<const std::byte*>(t.a) + GroupRows<Family::kS8>::own_bytes(t.rows, t.k);
  coded_gemm().coded_tile[static_cast<int>(kCode)](coded);
}

}  // namespace

constinit const kernel::Gemm group_gemm_bf16 = {
    .name = "bf16_groups_32x32_amx",
    .isa = Isa::kAmx,
    .family = Family::kBf16,
    .max_rows = kMaxRows,
    .packed_bytes = GroupRows<Family::kBf16>::bytes,
    .pack_rows = GroupRows<Family::kBf16>::pack,
    .tile = run<Family::kBf16>,
};

constinit const kernel::Gemm group_gemm_s8 = {
    .name = "s8_groups_32x32_amx",
    .isa = Isa::kAmx,
    .family = Family::kS8,
    .max_rows = kMaxRows,
    .packed_bytes = GroupRows<Family::kS8>::bytes,
    .pack_rows = GroupRows<Family::kS8>::pack,
    .tile = run<Family::kS8>,
    .coded_rows = {0, 0, 0, kCodedRows, 0, kCodedRows, 0},
    .coded_tile = {nullptr, nullptr, nullptr, run_codes<kernel::WeightCode::kE2M1>, nullptr,
                   run_codes<kernel::WeightCode::kInt4Groups>, nullptr},
};

}  // namespace megamoe::isa_amx
