// Weights of any layout -> panels. The loops are written so that the compiler turns them into plain vector
// code.
#include "pack/panel_packer.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/memory.h"
#include "pack/code_panel.h"

namespace megamoe::pack {
namespace {

constexpr int kColumns = kernel::kPanelColumns;
constexpr int64_t kDwordsPerLine = base::kCacheLine / sizeof(uint32_t);

/// A rectangle of the source with constant steps, and where it goes: rows of kColumns dwords at `out`, sums
/// at `sums`.
struct Piece {
  const std::byte* source;  ///< element (0, 0)
  int64_t k;                ///< rows of the rectangle
  int columns;
  int64_t k_step, n_step;  ///< in elements
  uint32_t* out;
  int32_t* sums;
};

template <class Element>
constexpr int kPerDword = sizeof(uint32_t) / sizeof(Element);

uint32_t load_dword(const void* address) {
  uint32_t value;
  std::memcpy(&value, address, sizeof(value));
  return value;
}

/// Any steps, and k that does not fill its last dword.
template <class Element>
void pack_general(const Piece& p) {
  using Bits = std::make_unsigned_t<Element>;
  constexpr int per = kPerDword<Element>;
  const auto* source = reinterpret_cast<const Element*>(p.source);
  for (int64_t k = 0; k < p.k; k += per) {
    uint32_t* out = p.out + k / per * kColumns;
    const int used = static_cast<int>(std::min<int64_t>(per, p.k - k));
    for (int j = 0; j < p.columns; ++j) {
      uint32_t dword = 0;
      for (int i = 0; i < used; ++i) {
        const Element value = source[(k + i) * p.k_step + j * p.n_step];
        dword |= static_cast<uint32_t>(static_cast<Bits>(value))
                 << (i * 8 * static_cast<int>(sizeof(Element)));
        if constexpr (sizeof(Element) == 1) p.sums[j] += value;
      }
      out[j] = dword;
    }
  }
}

/// Columns side by side in memory or `Step` apart, whole dwords: interleaves `per` source rows.
template <class Element, int Columns, int Step = 1>
void pack_rows(const Piece& p) {
  constexpr int per = kPerDword<Element>;
  const auto* source = reinterpret_cast<const Element*>(p.source);
  [[maybe_unused]] int32_t sums[Columns] = {};
  for (int64_t k = 0; k < p.k; k += per) {
    uint32_t* __restrict out = p.out + k / per * kColumns;
    const Element* const row = source + k * p.k_step;
    if constexpr (sizeof(Element) == 2) {
      const Element* const next = row + p.k_step;
      for (int j = 0; j < Columns; ++j) {
        out[j] = static_cast<uint32_t>(static_cast<uint16_t>(row[Step * j])) |
                 static_cast<uint32_t>(static_cast<uint16_t>(next[Step * j])) << 16;
      }
    } else {
      auto* __restrict bytes = reinterpret_cast<Element*>(out);
      const Element *const row1 = row + p.k_step, *const row2 = row1 + p.k_step,
                           *const row3 = row2 + p.k_step;
      for (int j = 0; j < Columns; ++j) {
        bytes[4 * j] = row[Step * j];
        bytes[4 * j + 1] = row1[Step * j];
        bytes[4 * j + 2] = row2[Step * j];
        bytes[4 * j + 3] = row3[Step * j];
      }
      for (int j = 0; j < Columns; ++j) {
        sums[j] += static_cast<int16_t>(static_cast<int16_t>(row[Step * j] + row1[Step * j]) +
                                        static_cast<int16_t>(row2[Step * j] + row3[Step * j]));
      }
    }
  }
  if constexpr (sizeof(Element) == 1) {
    for (int j = 0; j < Columns; ++j) p.sums[j] += sums[j];
  }
}

/// k side by side in memory, whole dwords: a transpose of dwords, one cache line of every column at a time.
template <class Element>
void pack_columns(const Piece& p) {
  const int64_t dwords = p.k / kPerDword<Element>;
  const int64_t column_bytes = p.n_step * static_cast<int64_t>(sizeof(Element));
  for (int64_t d = 0; d < dwords; d += kDwordsPerLine) {
    const int64_t count = std::min(kDwordsPerLine, dwords - d);
    for (int j = 0; j < p.columns; ++j) {
      const std::byte* const column =
          p.source + j * column_bytes + d * static_cast<int64_t>(sizeof(uint32_t));
      uint32_t* const out = p.out + d * kColumns + j;
      for (int64_t i = 0; i < count; ++i) out[i * kColumns] = load_dword(column + i * sizeof(uint32_t));
    }
  }
  if constexpr (sizeof(Element) == 1) {
    for (int j = 0; j < p.columns; ++j) {
      const auto* const column = reinterpret_cast<const Element*>(p.source + j * column_bytes);
      int32_t sum = 0;
      for (int64_t k = 0; k < p.k; ++k) sum += column[k];
      p.sums[j] += sum;
    }
  }
}

template <class Element>
void pack_piece(const Piece& p) {
  const int64_t whole = p.k / kPerDword<Element> * kPerDword<Element>;
  Piece body = p;
  body.k = whole;
  if (p.n_step == 1 && p.columns == kColumns) {
    pack_rows<Element, kColumns>(body);
  } else if (p.n_step == 1 && p.columns == kernel::kGatedColumns) {
    pack_rows<Element, kernel::kGatedColumns>(body);
  } else if (p.n_step == 2 && p.columns == kernel::kGatedColumns) {
    pack_rows<Element, kernel::kGatedColumns, 2>(body);
  } else if (p.k_step == 1) {
    pack_columns<Element>(body);
  } else {
    pack_general<Element>(p);
    return;
  }
  if (whole == p.k) return;
  Piece tail = p;
  tail.source += whole * p.k_step * static_cast<int64_t>(sizeof(Element));
  tail.k = p.k - whole;
  tail.out += whole / kPerDword<Element> * kColumns;
  pack_general<Element>(tail);
}

/// Which columns of a matrix follow each other in a panel: `run` neighbours, then the next ones `period`
/// behind the first of them.
struct ColumnOrder {
  int64_t run;
  int64_t period;
  int64_t first;  ///< stored column 0

  int64_t stored(int64_t c) const { return first + c / run * period + c % run; }
  /// Steps from one column to the next, where runs of one count as one run of such steps.
  int64_t step() const { return run == 1 ? period : 1; }
  /// Columns from c on that are step() apart.
  int64_t left(int64_t c) const { return run == 1 ? INT64_MAX : run - c % run; }
};

/// Cuts a run of columns and k at the block edges of the matrix.
template <class Element>
void pack_run(const WeightMatrix& m, const ColumnOrder& order, int64_t k_begin, int64_t k_end, int64_t column,
              int columns, uint32_t* out, int32_t* sums) {
  const int64_t step = order.step();
  for (int64_t k = k_begin; k < k_end;) {
    const int64_t k_next = std::min(k_end, (k / m.k_block + 1) * m.k_block);
    for (int j = 0; j < columns;) {
      const int64_t n = order.stored(column + j);
      const int64_t block = base::ceil_div((n / m.n_block + 1) * m.n_block - n, step);
      const int width = static_cast<int>(std::min({int64_t{columns} - j, block, order.left(column + j)}));
      pack_piece<Element>({m.data + m.offset(k, n) * static_cast<int64_t>(sizeof(Element)), k_next - k, width,
                           m.k_step, m.n_step * step, out + (k - k_begin) / kPerDword<Element> * kColumns + j,
                           sums == nullptr ? nullptr : sums + j});
      j += width;
    }
    k = k_next;
  }
}

template <class Element>
void pack_panel(const LinearWeights& weights, const Geometry& g, int64_t expert, int64_t index,
                int64_t k_begin, int64_t k_end, std::byte* panel, int32_t* sums) {
  constexpr int per = kPerDword<Element>;
  auto* const out = reinterpret_cast<uint32_t*>(panel) + k_begin / per * kColumns;
  if (sums != nullptr && k_begin == 0) std::fill_n(sums, kColumns, 0);

  const int64_t first = index * g.outputs_per_panel();
  const int width = static_cast<int>(std::min<int64_t>(g.outputs_per_panel(), g.outputs() - first));
  if (width < g.outputs_per_panel()) {
    std::fill_n(out, base::ceil_div(k_end - k_begin, per) * kColumns, 0u);
  }
  const WeightMatrix matrix = weight_matrix(weights.weight, weights.k_last, expert);
  // Gate and up columns in one matrix, or a matrix of its own.
  const int64_t run = g.gated ? g.gate_run() : g.n;
  ColumnOrder order{run, weights.up.empty() ? 2 * run : run, 0};
  pack_run<Element>(matrix, order, k_begin, k_end, first, width, out, sums);
  if (!g.gated) return;
  int32_t* const up_sums = sums == nullptr ? nullptr : sums + kernel::kGatedColumns;
  if (weights.up.empty()) order.first = run;
  pack_run<Element>(weights.up.empty() ? matrix : weight_matrix(weights.up, weights.k_last, expert), order,
                    k_begin, k_end, first, width, out + kernel::kGatedColumns, up_sums);
}

}  // namespace

void PanelPacker::pack(int64_t expert, int64_t index, int64_t k_begin, int64_t k_end, std::byte* panel,
                       int32_t* sums) const {
  if (geometry_.code != kernel::WeightCode::kStrip) {
    pack_code_panel(weights_, geometry_, expert, index, panel, sums);
  } else if (geometry_.family == kernel::Family::kBf16) {
    pack_panel<int16_t>(weights_, geometry_, expert, index, k_begin, k_end, panel, nullptr);
  } else {
    pack_panel<int8_t>(weights_, geometry_, expert, index, k_begin, k_end, panel, sums);
  }
}

void PanelPacker::pack_scales(int64_t expert, int64_t index, float* scales) const {
  for (int j = 0; j < kColumns; ++j) {
    const int64_t column = geometry_.column(index, j);
    scales[j] = column < 0 ? 0.0f : channel_scale(weights_.scale, expert, column);
  }
}

void PanelPacker::pack_bias(int64_t expert, int64_t index, const int32_t* sums, float* bias) const {
  const bool split = geometry_.code == kernel::WeightCode::kInt4;
  for (int j = 0; j < kColumns; ++j) {
    const int64_t column = geometry_.column(index, j);
    if (column < 0) {
      bias[j] = 0;
      continue;
    }
    const double given = channel_bias(weights_.bias, expert, column);
    const double back = split ? 8.0 * sums[j] * channel_scale(weights_.scale, expert, column) : 0.0;
    bias[j] = static_cast<float>(given - back);
  }
}

void PanelPacker::pack_added_bias(int64_t expert, int64_t index, float* bias) const {
  for (int j = 0; j < kColumns; ++j) {
    const int64_t column = geometry_.column(index, j);
    bias[j] = column < 0 ? 0.0f : channel_bias(weights_.added_bias, expert, column);
  }
}

bool PanelPacker::columns_contiguous() const {
  return geometry_.experts > 0 && geometry_.code == kernel::WeightCode::kStrip &&
         weight_matrix(weights_.weight, weights_.k_last, 0).n_step == 1;
}

}  // namespace megamoe::pack
