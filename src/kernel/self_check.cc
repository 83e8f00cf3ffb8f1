// Small products whose sums are exact, against plain integer arithmetic.
#include "kernel/self_check.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/cpu.h"
#include "base/isa_choice.h"
#include "kernel/registry.h"

namespace megamoe::kernel {
namespace {

constexpr int64_t kDepth = 75;  // two steps of 64 bytes with a tail in bf16, one and a tail in s8
constexpr int64_t kGroup = 32;  // of kernels with scales of groups: two and a part

struct alignas(64) Line {
  std::byte bytes[64] = {};
};
std::unique_ptr<Line[]> lines(size_t bytes) {
  return std::make_unique<Line[]>((bytes + 63) / 64);
}

/// Value of A and of B at k; sums of their products stay below 2^24, so floats hold them.
int row_code(int row, int64_t k) {
  return static_cast<int>((row * 53 + k * 37) % 255) - 127;
}
int column_code(int column, int64_t k) {
  return static_cast<int>((column * 29 + k * 91 + 11) % 255) - 127;
}

void put(Family family, std::byte* codes, int64_t at, int value) {
  if (family == Family::kS8) {
    codes[at] = static_cast<std::byte>(value);
    return;
  }
  const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(value));
  const auto code = static_cast<uint16_t>(bits >> 16);
  std::memcpy(codes + 2 * at, &code, sizeof code);
}

double value_at(bool integer, const std::byte* c, int64_t at) {
  uint32_t bits;
  std::memcpy(&bits, c + 4 * at, sizeof bits);
  return integer ? static_cast<double>(static_cast<int32_t>(bits))
                 : static_cast<double>(__builtin_bit_cast(float, bits));
}

}  // namespace

std::string check_gemm(const Gemm& gemm, bool groups) {
  const Family family = gemm.family;
  const int64_t per_dword = k_per_dword(family);
  const auto panel = lines(static_cast<size_t>(panel_bytes(family, kDepth)));
  int32_t sums[groups_of(kDepth, kGroup)][kPanelColumns] = {};
  float scales[groups_of(kDepth, kGroup)][kPanelColumns];
  for (auto& row : scales) std::fill(std::begin(row), std::end(row), 1.0f);
  for (int64_t k = 0; k < kDepth; ++k) {
    for (int c = 0; c < kPanelColumns; ++c) {
      put(family, panel[0].bytes, (k / per_dword * kPanelColumns + c) * per_dword + k % per_dword,
          column_code(c, k));
      sums[groups ? k / kGroup : 0][c] += column_code(c, k);
    }
  }
  const auto codes = lines(static_cast<size_t>(gemm.max_rows * kDepth * 4 / per_dword));
  for (int r = 0; r < gemm.max_rows; ++r) {
    for (int64_t k = 0; k < kDepth; ++k) put(family, codes[0].bytes, r * kDepth + k, row_code(r, k));
  }
  const auto packed = lines(gemm.packed_bytes(gemm.max_rows, kDepth));
  const auto c = lines(static_cast<size_t>(gemm.max_rows) * kPanelColumns * 4);
  for (const int rows : {1, gemm.max_rows / 2 + 1, gemm.max_rows}) {
    PackRows pack{codes.get(), kDepth * 4 / per_dword, rows, kDepth, packed.get()};
    Tile tile{packed.get(), rows, kDepth, panel.get(), sums[0], c.get(), nullptr, 0};
    if (groups) {
      pack.group = tile.group = kGroup;
      tile.group_scales = scales[0];
    }
    gemm.pack_rows(pack);
    gemm.tile(tile);
    for (int r = 0; r < rows; ++r) {
      for (int column = 0; column < kPanelColumns; ++column) {
        int64_t want = 0;
        for (int64_t k = 0; k < kDepth; ++k) want += row_code(r, k) * column_code(column, k);
        const double got = value_at(family == Family::kS8 && !groups, c[0].bytes, r * kPanelColumns + column);
        if (got == static_cast<double>(want)) continue;
        return std::string(gemm.name) + " is wrong on this machine: row " + std::to_string(r) + " of " +
               std::to_string(rows) + ", column " + std::to_string(column) + " is " + std::to_string(got) +
               ", expected " + std::to_string(want);
      }
    }
  }
  return {};
}

const std::string& amx_fault() {
  static const std::string fault = [] {
    std::string first;
    if (!base::missing_for(Isa::kAmx, base::this_cpu()).empty()) return first;
    for (const bool groups : {false, true}) {
      for (const Gemm* gemm : groups ? all_group_gemms() : all_gemms()) {
        if (gemm->isa == Isa::kAmx && first.empty()) first = check_gemm(*gemm, groups);
      }
    }
    return first;
  }();
  return fault;
}

}  // namespace megamoe::kernel
