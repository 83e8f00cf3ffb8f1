// Codes and their scales, element by element: every layout is read through its offset function.
#include "pack/code_panel.h"

#include <algorithm>
#include <cstring>

#include "base/memory.h"
#include "pack/weight_matrix.h"

namespace megamoe::pack {
namespace {

constexpr int kColumns = kernel::kPanelColumns;
constexpr int kGroup = kernel::kMxGroup;

/// One column of a panel in the caller's memory; `matrix.data` is null for padding.
struct Column {
  WeightMatrix matrix;
  int64_t n = 0;
  bool nibbles = false;

  uint8_t code(int64_t k) const {
    const int64_t at = matrix.offset(k, n);
    const auto* bytes = reinterpret_cast<const uint8_t*>(matrix.data);
    if (!nibbles) return bytes[at];
    return static_cast<uint8_t>(bytes[at / 2] >> (at % 2 * 4) & 15);
  }
  bool present() const { return matrix.data != nullptr; }
};

struct Columns {
  Column column[kColumns];
  int64_t stored[kColumns];  ///< column of the layer, -1 for padding

  Columns(const LinearWeights& weights, const Geometry& g, int64_t expert, int64_t index) {
    const WeightMatrix whole = weight_matrix(weights.weight, weights.k_last, expert);
    const WeightMatrix up = weights.up.empty() ? whole : weight_matrix(weights.up, weights.k_last, expert);
    for (int j = 0; j < kColumns; ++j) {
      const int64_t n = stored[j] = g.column(index, j);
      if (n < 0) continue;
      const bool from_up = !weights.up.empty() && n >= g.n / 2;
      column[j] = {from_up ? up : whole, from_up ? n - g.n / 2 : n, dtype_bits(g.dtype) == 4};
    }
  }
};

/// Where the nibble of k of a column stands in its byte, and which byte that is.
int nibble_shift(int64_t k) {
  return static_cast<int>(k % 8 / 4 * 4);
}
int64_t nibble_byte(int64_t k, int column) {
  return (k / 8 * kColumns + column) * 4 + k % 4;
}

// What decoders of FP8 need not know: a zero with a sign, and a NaN of E4M3, of which its column has a scale.
void tidy_fp8(kernel::WeightCode format, uint8_t& code, uint8_t& scale) {
  if (format == kernel::WeightCode::kE4M3 && (code & 0x7f) == 0x7f) scale = 0xff;
  if (code == 0x80) code = 0;
}

void pack_mx(const LinearWeights& weights, const Geometry& g, int64_t expert, const Columns& columns,
             uint8_t* out) {
  const bool nibbles = dtype_bits(g.dtype) == 4;
  for (int64_t begin = 0; begin < g.k; begin += kGroup) {
    const int64_t count = std::min<int64_t>(kGroup, g.k - begin);
    const int64_t bytes = kGroup * kColumns / (nibbles ? 2 : 1);
    uint8_t* const codes = out + kColumns;
    std::memset(out, 0, static_cast<size_t>(kColumns + bytes));
    for (int j = 0; j < kColumns; ++j) {
      const Column& column = columns.column[j];
      if (!column.present()) continue;
      out[j] = mx_scale(weights.scale, expert, columns.stored[j], begin / kGroup);
      for (int64_t i = 0; i < count; ++i) {
        uint8_t code = column.code(begin + i);
        if (nibbles) {
          codes[nibble_byte(i, j)] |= static_cast<uint8_t>(code << nibble_shift(i));
        } else {
          tidy_fp8(g.code, code, out[j]);
          codes[i * kColumns + j] = code;
        }
      }
    }
    out = codes + bytes;
  }
}

void pack_int4(const Geometry& g, const Columns& columns, uint8_t* out, int32_t* sums) {
  std::memset(out, 0, static_cast<size_t>(g.stored_bytes()));
  for (int j = 0; j < kColumns; ++j) {
    const Column& column = columns.column[j];
    sums[j] = 0;
    for (int64_t k = 0; column.present() && k < g.k; ++k) {
      const int code = column.code(k);
      out[nibble_byte(k, j)] |= static_cast<uint8_t>(code << nibble_shift(k));
      sums[j] += code - (code > 7 ? 16 : 0);
    }
  }
}

// Scales and zero points of one group.
void pack_header(const LinearWeights& weights, const Geometry& g, int64_t expert, const Columns& columns,
                 int64_t group, uint8_t* header) {
  const int64_t bytes = dtype_bits(g.form.scales) / 8;
  std::memset(header, 0, static_cast<size_t>(g.form.header_bytes()));
  for (int j = 0; j < kColumns; ++j) {
    const Column& column = columns.column[j];
    if (!column.present()) continue;
    int64_t row = columns.stored[j];
    if (g.scales == ScaleKind::kBlocks) {
      // Separate gate and up tensors have their own blocks, gate first.
      const bool second = !weights.up.empty() && row >= g.n / 2;
      row = second ? base::ceil_div(g.n / 2, kScaleBlock) + (row - g.n / 2) / kScaleBlock : row / kScaleBlock;
    }
    std::memcpy(header + j * bytes, group_element(weights.scale, expert, row, group),
                static_cast<size_t>(bytes));
    if (g.form.zeros) {
      std::memcpy(header + g.form.scale_bytes() + j, group_element(weights.zero, expert, row, group), 1);
    }
  }
}

void pack_groups(const LinearWeights& weights, const Geometry& g, int64_t expert, const Columns& columns,
                 uint8_t* out) {
  const bool nibbles = dtype_bits(g.dtype) == 4;
  for (int64_t begin = 0; begin < g.k; begin += g.form.group) {
    const int64_t count = std::min(g.form.group, g.k - begin);
    pack_header(weights, g, expert, columns, begin / g.form.group, out);
    uint8_t* const codes = out + g.form.header_bytes();
    const int64_t bytes =
        nibbles ? base::ceil_div(count, 8) * kColumns * 4 : base::ceil_div(count, 2) * kColumns * 2;
    std::memset(codes, nibbles ? 0x88 : 0, static_cast<size_t>(bytes));
    for (int j = 0; j < kColumns; ++j) {
      const Column& column = columns.column[j];
      for (int64_t i = 0; column.present() && i < count; ++i) {
        const uint8_t code = column.code(begin + i);
        if (nibbles) {
          uint8_t& both = codes[nibble_byte(i, j)];
          const int shift = nibble_shift(i);
          both = static_cast<uint8_t>((both & (0xf0 >> shift)) | (code ^ 8) << shift);
        } else {
          codes[i * kColumns + j] = code;
        }
      }
    }
    out = codes + bytes;
  }
}

}  // namespace

void pack_code_panel(const LinearWeights& weights, const Geometry& g, int64_t expert, int64_t index,
                     std::byte* stored, int32_t* sums) {
  const Columns columns(weights, g, expert, index);
  if (g.code == kernel::WeightCode::kInt4) {
    pack_int4(g, columns, reinterpret_cast<uint8_t*>(stored), sums);
  } else if (g.form.group != 0) {
    pack_groups(weights, g, expert, columns, reinterpret_cast<uint8_t*>(stored));
  } else {
    pack_mx(weights, g, expert, columns, reinterpret_cast<uint8_t*>(stored));
  }
}

}  // namespace megamoe::pack
