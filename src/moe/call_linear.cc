// The matrix products of a call: Linear1 and Linear2 of one piece of a block.
#include <algorithm>
#include <cstring>

#include "moe/call.h"

namespace megamoe::moe {
namespace {

/// Memory that is written soon: its line is brought in while something else is computed.
inline void announce_store(const void* address) {
  __builtin_prefetch(address, 1);
}

/// Bytes of the coming weights that are announced just before the outputs of a tile are made, and as many
/// just after, where the tile announces the next panel: while outputs are made nothing else is asked of
/// memory.
constexpr int64_t kAroundOutputs = 24 * base::kCacheLine;

void announce(const std::byte* from, int64_t bytes, bool once) {
  for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(base::kCacheLine)) {
    once ? __builtin_prefetch(from + at, 0, 0) : __builtin_prefetch(from + at, 0, 2);
  }
}

/// Decodes the range of k of a tile to a strip, with the scales and sums of its groups behind the codes.
void decode_range(const LinearPlan& linear, const std::byte* stored, std::byte* strip, kernel::Tile& tile) {
  const pack::Geometry& g = linear.geometry();
  kernel::DecodePanel decode{stored, tile.k, strip, g.form};
  decode.k_begin = tile.k_begin;
  if (g.group() != 0) {
    decode.scales = reinterpret_cast<float*>(strip + kernel::panel_bytes(g.family, tile.k));
    tile.group_scales = decode.scales;
    if (g.family == kernel::Family::kS8) {
      decode.sums = reinterpret_cast<int32_t*>(decode.scales) +
                    kernel::groups_of(tile.k, g.group()) * kernel::kPanelColumns;
      tile.column_sums = decode.sums;
    }
  }
  linear.decode(decode);
}

}  // namespace

Call::Coming Call::coming(const LinearPlan& linear, const Block& block, int64_t panel) {
  const std::byte* const from = linear.source->stored(block.expert, panel);
  const int64_t count = std::min(linear.panels_at_once(block.rows), linear.geometry().panels() - panel);
  for (int64_t i = 0; i < count; ++i) linear.source->announce_rows(block.expert, panel + i);
  return {from, from == nullptr ? 0 : linear.geometry().stored_bytes() * count};
}

// The first panel this thread reads after a piece: of the piece it takes next, of Linear2 after Linear1, of
// its next block.
Call::Coming Call::after(const Block& block, const Piece& piece) const {
  const ExpertPlan& plan = *rows_of(block).plan;
  if (piece.next >= 0) {
    const LinearPlan& linear = piece.work == Work::kLinear1 ? plan.linear1 : plan.linear2;
    return coming(linear, block, piece.next * piece_panels(linear, block));
  }
  if (piece.work == Work::kLinear1) return coming(plan.linear2, block, 0);
  if (piece.next_block < 0) return {};
  const Block& next = owner_.blocks[static_cast<size_t>(piece.next_block)];
  return coming(rows_of(next).plan->linear1, next, 0);
}

// Runs all row tiles of a block over the panels of one piece; `consume(panel index, panel, accumulators,
// first row in the block, rows)` takes each finished tile.
template <class Packed, class Consume>
void Call::multiply(const LinearPlan& linear, const Codec& codec, const Block& block, const Piece& piece,
                    const Scratch& scratch, Packed&& packed, Consume&& consume) {
  const pack::Geometry& g = linear.geometry();
  const int64_t per_piece = piece_panels(linear, block);
  const int64_t end = std::min(g.panels(), (piece.index + 1) * per_piece);
  const int64_t tiles = linear.tiles(block.rows);
  const int64_t range = linear.range(block.rows);
  const int64_t ranges = base::ceil_div(g.k, range);
  const bool reads_codes = linear.reads_codes(block.rows), keeps = linear.keeps(block.rows);
  const auto multiply_tile =
      reads_codes ? linear.gemm->coded_tile[static_cast<int>(g.code)] : linear.gemm->tile;
  const int64_t at_once = linear.panels_at_once(block.rows);
  const bool one_stream = plan_.memory.follows_streams && tiles == 1 && ranges == 1 && at_once == 1 &&
                          linear.source->stored(0, 0) != nullptr;
  const auto& streams = linear.gemm->stream[static_cast<int>(g.code)];
  const auto stream = one_stream && block.rows <= streams.most_rows ? streams : kernel::Gemm::Stream{};
  int64_t count = 1;
  for (int64_t p = piece.index * per_piece; p < end; p += count) {
    count = std::min(at_once, end - p);
    const int64_t after_p = p + count;
    pack::Panel panels[2] = {linear.source->panel(block.expert, p, scratch.strip)};
    if (count == 2) panels[1] = linear.source->panel(block.expert, p + 1, scratch.strip);
    const pack::Panel& panel = panels[0];
    // Every tile brings in its share of the next panel, so that no tile waits for all of it.
    const Coming next = after_p < end ? coming(linear, block, after_p) : after(block, piece);
    const base::EvenSplit shares{stream.ahead > 0 ? 0 : next.bytes, ranges * tiles};
    for (int64_t i = 0; i < ranges; ++i) {
      kernel::Tile tile{};
      tile.k_begin = i * range;
      tile.k = std::min(range, g.k - tile.k_begin);
      tile.accumulate = i > 0;
      tile.panel = panel.codes;
      if (linear.decode != nullptr && !reads_codes) {
        tile.panel = scratch.strip;
        decode_range(linear, panel.codes, scratch.strip, tile);
      }
      if (keeps) {
        tile.panel = panel.codes + kernel::stored_panel_bytes(g.code, g.family, tile.k_begin, g.form);
        tile.kept = scratch.strip;
      }
      if (panel.column_sums != nullptr) tile.column_sums = panel.column_sums;
      tile.group = g.group();
      tile.form = g.form;
      tile.row_scaled = tile.group != 0 && codec.has_factors(tile.group);
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t begin = LinearPlan::tile_begin(block.rows, tiles, t);
        tile.a = packed(t);
        tile.decoded = t > 0;
        tile.rows = static_cast<int>(LinearPlan::tile_begin(block.rows, tiles, t + 1) - begin);
        // Sums of a single range are consumed at once: always the same memory.
        tile.c = scratch.tile + (ranges == 1 ? 0 : begin * kernel::kPanelColumns * 4);
        const int64_t share = i * tiles + t;
        const int64_t around = i + 1 < ranges ? 0 : std::min(kAroundOutputs, shares.size(share) / 3);
        tile.prefetch = next.from + shares.begin(share);
        tile.prefetch_bytes = shares.size(share) - 2 * around;
        tile.read_once = plan_.memory.keeps_read_once;
        tile.ahead = stream.ahead;
        tile.panels = static_cast<int>(count);
        multiply_tile(tile);
        const std::byte* const rest = tile.prefetch + tile.prefetch_bytes;
        announce(rest, around, plan_.memory.keeps_read_once);
        if (next.from != nullptr) announce(next.from + stream.ahead, stream.before_outputs, true);
        for (int64_t q = 0; q < count && i + 1 == ranges; ++q) {
          consume(p + q, panels[q],
                  static_cast<std::byte*>(tile.c) + q * tile.rows * kernel::kPanelColumns * 4, begin,
                  tile.rows);
        }
        announce(rest + around, around, plan_.memory.keeps_read_once);
      }
    }
  }
}

void Call::linear1(const Block& block, const Piece& piece, const Scratch& scratch) {
  const Rows& rows = rows_of(block);
  const pack::Geometry& g = rows.plan->linear1.geometry();
  const Scenario& scenario = *rows.plan->scenario;
  const int element = dtype_bits(scenario.activated()) / 8;
  const auto epilogue =
      plan_.ops->linear1[static_cast<int>(scenario.epilogue1)][static_cast<int>(plan_.activation.kind)];
  // Row scales of an integer family are one float per row.
  float scales[kBlockRows];
  const bool scaled = scenario.epilogue1 != kernel::EpilogueKind::kBf16;
  if (scaled) gather_scales(rows.scale_row(block.first_row), rows.scale_stride, block.rows, scales);
  multiply(
      rows.plan->linear1, *scenario.token_codec, block, piece, scratch,
      [&](int64_t t) { return rows.packed1(block.room, t); },
      [&](int64_t p, const pack::Panel& panel, const void* c, int64_t begin, int count) {
        const int64_t first = p * g.outputs_per_panel();
        const int64_t first_row = block.first_row + begin;
        kernel::Linear1Epilogue out{};
        out.c = c;
        out.rows = count;
        out.outputs = static_cast<int>(std::min<int64_t>(g.outputs_per_panel(), g.outputs() - first));
        out.column_scales = panel.column_scales;
        out.column_shift = panel.column_shift;
        out.column_bias = panel.column_bias;
        out.row_scales = scaled ? scales + begin : nullptr;
        out.row_weights = rows.weights == nullptr ? nullptr : rows.weights + first_row;
        out.params = &plan_.activation.params;
        std::byte* const to = rows.activated(block.room_row + begin) + first * element;
        out.out = to;
        out.out_row_bytes = static_cast<ptrdiff_t>(rows.workspace->activated_row);
        epilogue(out);
        for (int r = 0; r < count; ++r) announce_store(to + r * out.out_row_bytes + out.outputs * element);
        if (owner_.keep_stages) keep_linear1(block, p, first_row, out);
      });
}

// What the activation took from a tile, to the columns of Linear1: gate, then up.
void Call::keep_linear1(const Block& block, int64_t panel, int64_t first_row,
                        kernel::Linear1Epilogue tile) const {
  const Rows& rows = rows_of(block);
  const pack::Geometry& g = rows.plan->linear1.geometry();
  float values[kBlockRows * kernel::kPanelColumns];
  tile.out = values;
  tile.out_row_bytes = kernel::kPanelColumns * sizeof(float);
  plan_.ops->linear1_values[static_cast<int>(rows.plan->scenario->epilogue1)](tile);
  for (int row = 0; row < tile.rows; ++row) {
    const float* const from = values + row * kernel::kPanelColumns;
    float* const to = rows.workspace->linear1_values(first_row + row) + panel * g.outputs_per_panel();
    std::copy_n(from, tile.outputs, to);
    if (g.gated) std::copy_n(from + kernel::kGatedColumns, tile.outputs, to + g.outputs());
  }
}

// One float per row from scales that lie a stride apart.
void Call::gather_scales(const std::byte* scales, size_t stride, int64_t count, float* gathered) {
  for (int64_t r = 0; r < count; ++r)
    std::memcpy(gathered + r, scales + static_cast<size_t>(r) * stride, sizeof(float));
}

void Call::linear2(const Block& block, const Piece& piece, const Scratch& scratch) {
  const Rows& rows = rows_of(block);
  const pack::Geometry& g = rows.plan->linear2.geometry();
  const Scenario& scenario = *rows.plan->scenario;
  const auto epilogue = plan_.ops->linear2[static_cast<int>(scenario.epilogue2)];
  const bool scaled = scenario.epilogue2 != kernel::EpilogueKind::kBf16;
  // Shared rows stay on this rank and are never quantised.
  const Codec* codec = block.set == kRouted ? owner_.combine_codec : nullptr;
  float scales[kBlockRows];
  if (scaled) gather_scales(rows.mid_scales(block.room_row), rows.workspace->scales_row, block.rows, scales);
  const comm::RowHome* const homes = rows.homes + block.first_row;
  std::byte* slots[kBlockRows];
  for (int64_t r = 0; r < block.rows; ++r) slots[r] = place(block, homes[r]);
  // Rows of many tiles fill the caches and are read when they have long left them.
  bool streams = codec == nullptr && rows.plan->linear2.tiles(block.rows) > 1;
  for (int64_t r = 0; r < block.rows && streams; ++r) {
    streams = reinterpret_cast<uintptr_t>(slots[r]) % base::kCacheLine == 0;
  }
  multiply(
      rows.plan->linear2, *scenario.requantise_codec, block, piece, scratch,
      [&](int64_t t) { return rows.packed2(block.room, t); },
      [&](int64_t p, const pack::Panel& panel, const void* c, int64_t begin, int count) {
        const int64_t first = p * kernel::kPanelColumns;
        const int64_t first_row = block.first_row + begin;
        auto* const staged = reinterpret_cast<uint16_t*>(scratch.row);
        uint16_t* places[kBlockRows];
        for (int r = 0; r < count; ++r) {
          places[r] = codec != nullptr ? staged + r * kernel::kPanelColumns
                                       : reinterpret_cast<uint16_t*>(slots[begin + r]) + first;
        }
        kernel::Linear2Epilogue out{};
        out.c = c;
        out.rows = count;
        out.outputs = static_cast<int>(std::min<int64_t>(kernel::kPanelColumns, g.n - first));
        out.column_scales = panel.column_scales;
        out.column_shift = panel.column_shift;
        out.column_bias = panel.column_bias;
        out.row_scales = scaled ? scales + begin : nullptr;
        out.bias_factors = rows.weights == nullptr ? nullptr : rows.weights + first_row;
        out.out = places;
        out.stream = streams;
        epilogue(out);
        if (codec == nullptr) {
          if (streams) return;
          for (int r = 0; r < count && p + 1 < g.panels(); ++r) announce_store(places[r] + out.outputs);
          return;
        }
        // A panel is one MX group of the row: its codes and its scale byte go to their places in the slot.
        for (int r = 0; r < count; ++r) {
          if (owner_.keep_stages) {
            std::copy_n(places[r], out.outputs, rows.workspace->linear2_values(first_row + r) + first);
          }
          std::byte* const slot = slots[begin + r];
          std::byte scale[2];
          codec->encode(*plan_.ops, places[r], DType::kBFloat16, out.outputs, slot + codec->row_bytes(first),
                        scale);
          slot[owner_.slot_scales() + static_cast<size_t>(p)] = scale[0];
        }
      });
  if (streams) plan_.ops->stream_end();
}

}  // namespace megamoe::moe
