// One call: exchange, then one parallel region in which every thread claims pieces until nothing is left.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "comm/dispatch.h"
#include "format/bf16.h"
#include "moe/plan.h"

namespace megamoe {
namespace moe {
namespace {

// Tokens of one dispatch piece and of one combine piece.
constexpr int64_t kDispatchTokens = 8;
constexpr int64_t kCombineTokens = 4;

TraceSpan::Stage trace_stage(Work work) {
  switch (work) {
    case Work::kDispatch:
      return TraceSpan::Stage::kDispatch;
    case Work::kPrepare:
      return TraceSpan::Stage::kPrepare;
    case Work::kLinear1:
      return TraceSpan::Stage::kLinear1;
    case Work::kRequantise:
      return TraceSpan::Stage::kRequantise;
    case Work::kLinear2:
      return TraceSpan::Stage::kLinear2;
    case Work::kCombine:
      return TraceSpan::Stage::kCombine;
    case Work::kNone:
      break;
  }
  return TraceSpan::Stage::kWait;
}

// The state of one call that its threads share.
class Call {
 public:
  Call(const MegaMoe::Impl& plan, const CallArgs& args)
      : plan_(plan),
        args_(args),
        owner_(plan.buffer->impl()),
        session_(*owner_.session),
        tokens_(args.x.shape[0]) {}

  Status run() {
    plan_blocks();
    owner_.schedule.reset(owner_.block_pieces, base::ceil_div(tokens_, kDispatchTokens), combine_pieces());
    const Status started = owner_.team.run([this](int thread) { work(thread); });
    if (!started.is_ok()) {
      // Peers wait for this rank's rows: they learn why none come.
      const int rank = owner_.group.rank();
      return session_.fail(started.code(), rank, comm::Stage::kNone,
                           "rank " + std::to_string(rank) + ": " + started.message());
    }
    return failure_;
  }

 private:
  int64_t combine_pieces() const { return base::ceil_div(tokens_, kCombineTokens); }

  // Blocks of this rank's experts, those with the most rows first.
  void plan_blocks() {
    std::vector<Block>& blocks = owner_.blocks;
    blocks.clear();
    const int64_t first_expert = owner_.group.rank() * owner_.experts_per_rank;
    for (int64_t local = 0; local < owner_.local_experts; ++local) {
      const int64_t expert = first_expert + local;
      for (int64_t b = 0; b < owner_.rows.blocks(expert); ++b) {
        blocks.push_back({local, owner_.rows.first_row(expert) + owner_.rows.block_begin(expert, b),
                          owner_.rows.block_rows(expert, b),
                          owner_.layout.arrived +
                              static_cast<size_t>(owner_.rows.first_block(expert) + b) * sizeof(uint32_t)});
      }
    }
    std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
      return a.rows != b.rows ? a.rows > b.rows : a.first_row < b.first_row;
    });
    owner_.block_pieces.clear();
    for (const Block& block : blocks) {
      const auto pieces = [&](const LinearPlan& linear) {
        return static_cast<uint32_t>(
            base::ceil_div(linear.geometry().panels(), panels_per_piece(linear, block.rows, owner_.threads)));
      };
      owner_.block_pieces.push_back(
          {{static_cast<uint32_t>(plan_.linear1.tiles(block.rows)), pieces(plan_.linear1),
            static_cast<uint32_t>(plan_.linear2.tiles(block.rows)), pieces(plan_.linear2)}});
    }
  }

  void work(int thread) {
    const auto arrived = [this](int64_t b) {
      const Block& block = owner_.blocks[static_cast<size_t>(b)];
      return comm::read_counter(session_, block.arrived) == static_cast<uint32_t>(block.rows);
    };
    const auto complete = [this](int64_t piece) {
      const int64_t end = std::min(tokens_, (piece + 1) * kCombineTokens);
      for (int64_t token = piece * kCombineTokens; token < end; ++token) {
        if (comm::read_counter(session_, done_counter(token)) != owner_.token_map.used(token)) return false;
      }
      return true;
    };
    Schedule& schedule = owner_.schedule;
    while (!failed_.load(std::memory_order_relaxed)) {
      Piece piece = schedule.claim(arrived, complete);
      if (!piece) {
        if (schedule.drained()) return;
        const TraceScope scope(owner_.trace, thread, TraceSpan::Stage::kWait);
        Status waited = session_.wait_until(
            [&] { return (piece = schedule.claim(arrived, complete)) || schedule.drained(); },
            owner_.blocks.empty() ? comm::Stage::kReturn : comm::Stage::kBlocks);
        if (!waited.is_ok()) return fail(std::move(waited));
        if (!piece) return;
      }
      {
        const TraceScope scope(owner_.trace, thread, trace_stage(piece.work));
        execute(piece, owner_.scratch[static_cast<size_t>(thread)]);
      }
      const Schedule::Event event = schedule.finish(piece);
      if (event == Schedule::Event::kBlockDone) {
        return_rows(owner_.blocks[static_cast<size_t>(piece.block)]);
        schedule.retire();
      }
      if (event != Schedule::Event::kNothing || schedule.drained()) session_.ring(session_.rank());
    }
  }

  void fail(Status status) {
    const std::lock_guard lock(failure_mutex_);
    if (failure_.is_ok()) failure_ = std::move(status);
    failed_.store(true, std::memory_order_relaxed);
  }

  void execute(const Piece& piece, const Scratch& scratch) {
    switch (piece.work) {
      case Work::kDispatch:
        return dispatch(piece.index, scratch);
      case Work::kPrepare:
        return prepare(block_of(piece), piece.block, piece.index);
      case Work::kLinear1:
        return linear1(block_of(piece), piece.block, piece.index, scratch);
      case Work::kRequantise:
        return requantise(block_of(piece), piece.block, piece.index);
      case Work::kLinear2:
        return linear2(block_of(piece), piece.block, piece.index, scratch);
      case Work::kCombine:
        return combine(piece.index, scratch);
      case Work::kNone:
        return;
    }
  }

  const Block& block_of(const Piece& piece) const { return owner_.blocks[static_cast<size_t>(piece.block)]; }
  size_t done_counter(int64_t token) const {
    return owner_.layout.done + static_cast<size_t>(token) * sizeof(uint32_t);
  }

  float router_weight(int64_t token, int64_t slot) const {
    const TensorView& weights = args_.topk_weights;
    const int64_t at = token * weights.strides[0] + slot * weights.strides[1];
    return weights.dtype == DType::kFloat32
               ? static_cast<const float*>(weights.data)[at]
               : format::bf16_to_float(static_cast<const uint16_t*>(weights.data)[at]);
  }

  void dispatch(int64_t piece, const Scratch& scratch) {
    const int64_t end = std::min(tokens_, (piece + 1) * kDispatchTokens);
    for (int64_t token = piece * kDispatchTokens; token < end; ++token) {
      const uint32_t used = owner_.token_map.used(token);
      if (used == 0) continue;
      const uint16_t* row = static_cast<const uint16_t*>(args_.x.data) + token * args_.x.strides[0];
      if (args_.x.strides[1] != 1) {
        auto* gathered = reinterpret_cast<uint16_t*>(scratch.row);
        for (int64_t h = 0; h < owner_.config.hidden; ++h) gathered[h] = row[h * args_.x.strides[1]];
        row = gathered;
      }
      float scale = 1;
      comm::TokenRow encoded{row, &scale};
      if (owner_.codec->encodes()) {
        owner_.codec->encode(*plan_.ops, row, DType::kBFloat16, owner_.config.hidden, scratch.codes, &scale);
        encoded.codes = scratch.codes;
      }
      for (int64_t slot = 0; slot < owner_.config.num_topk; ++slot) {
        const int32_t expert = owner_.token_map.expert(token, slot);
        if (expert < 0) continue;
        const comm::RowHome home{owner_.group.rank(), static_cast<int16_t>(slot), static_cast<int16_t>(used),
                                 token};
        comm::send_row(session_, owner_.layout, owner_.rows, expert, owner_.token_map.order(token, slot),
                       encoded, router_weight(token, slot), home);
      }
    }
  }

  std::byte* packed1(int64_t block, int64_t tile) const {
    return owner_.workspace.packed1.data() + static_cast<size_t>(block) * owner_.workspace.packed_block1 +
           static_cast<size_t>(tile) * plan_.linear1.tile_stride();
  }
  std::byte* packed2(int64_t block, int64_t tile) const {
    return owner_.workspace.packed2.data() + static_cast<size_t>(block) * owner_.workspace.packed_block2 +
           static_cast<size_t>(tile) * plan_.linear2.tile_stride();
  }
  std::byte* activated(int64_t row) const {
    return owner_.workspace.activated.data() + static_cast<size_t>(row) * owner_.workspace.activated_row;
  }
  float* mid_scales() const { return reinterpret_cast<float*>(owner_.workspace.scales.data()); }

  void prepare(const Block& block, int64_t block_index, int64_t tile) {
    const int64_t tiles = plan_.linear1.tiles(block.rows);
    const int64_t begin = LinearPlan::tile_begin(block.rows, tiles, tile);
    const int64_t end = LinearPlan::tile_begin(block.rows, tiles, tile + 1);
    kernel::PackRows pack{};
    pack.codes = owner_.pool(owner_.layout.codes, owner_.layout.code_stride(), block.first_row + begin);
    pack.row_bytes = static_cast<ptrdiff_t>(owner_.layout.code_stride());
    pack.rows = static_cast<int>(end - begin);
    pack.k = plan_.linear1.geometry().k;
    pack.out = packed1(block_index, tile);
    plan_.linear1.gemm->pack_rows(pack);
  }

  // Runs all row tiles of a block over the panels of one piece; `consume(panel, tile rows, C)` takes each
  // finished tile.
  template <class Packed, class Consume>
  void multiply(const LinearPlan& linear, const Block& block, int64_t piece, const Scratch& scratch,
                Packed&& packed, Consume&& consume) {
    const pack::Geometry& g = linear.geometry();
    const int64_t per_piece = panels_per_piece(linear, block.rows, owner_.threads);
    const int64_t end = std::min(g.panels(), (piece + 1) * per_piece);
    const int64_t tiles = linear.tiles(block.rows);
    const int64_t bytes = kernel::panel_bytes(g.family, g.k);
    for (int64_t p = piece * per_piece; p < end; ++p) {
      const pack::Panel panel = linear.source->panel(block.expert, p, scratch.strip);
      const std::byte* next = p + 1 < g.panels() ? linear.source->stored(block.expert, p + 1) : nullptr;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t begin = LinearPlan::tile_begin(block.rows, tiles, t);
        kernel::Tile tile{};
        tile.a = packed(t);
        tile.rows = static_cast<int>(LinearPlan::tile_begin(block.rows, tiles, t + 1) - begin);
        tile.k = g.k;
        tile.panel = panel.codes;
        tile.column_sums = panel.column_sums;
        tile.c = scratch.tile;
        if (next != nullptr) {
          // Every tile brings in its share of the next panel, so that no tile waits for all of it.
          const int64_t from = bytes * t / tiles;
          tile.prefetch = next + from;
          tile.prefetch_bytes = bytes * (t + 1) / tiles - from;
        }
        linear.gemm->tile(tile);
        consume(p, panel, begin, tile.rows);
      }
    }
  }

  void linear1(const Block& block, int64_t block_index, int64_t piece, const Scratch& scratch) {
    const pack::Geometry& g = plan_.linear1.geometry();
    const int element = dtype_bits(plan_.scenario->activated()) / 8;
    const auto epilogue =
        plan_.ops
            ->linear1[static_cast<int>(plan_.scenario->epilogue1)][static_cast<int>(plan_.activation.kind)];
    multiply(
        plan_.linear1, block, piece, scratch, [&](int64_t t) { return packed1(block_index, t); },
        [&](int64_t p, const pack::Panel& panel, int64_t begin, int rows) {
          const int64_t first = p * g.outputs_per_panel();
          kernel::Linear1Epilogue out{};
          out.c = scratch.tile;
          out.rows = rows;
          out.outputs = static_cast<int>(std::min<int64_t>(g.outputs_per_panel(), g.outputs() - first));
          out.column_scales = panel.column_scales;
          out.row_scales = reinterpret_cast<const float*>(
              owner_.pool(owner_.layout.scales, sizeof(float), block.first_row + begin));
          out.params = &plan_.activation.params;
          out.out = activated(block.first_row + begin) + first * element;
          out.out_row_bytes = static_cast<ptrdiff_t>(owner_.workspace.activated_row);
          epilogue(out);
        });
  }

  void requantise(const Block& block, int64_t block_index, int64_t tile) {
    const int64_t tiles = plan_.linear2.tiles(block.rows);
    const int64_t begin = block.first_row + LinearPlan::tile_begin(block.rows, tiles, tile);
    const int64_t end = block.first_row + LinearPlan::tile_begin(block.rows, tiles, tile + 1);
    const Codec& codec = *plan_.scenario->requantise_codec;
    const DType activated_type = plan_.scenario->activated();
    const int64_t k = plan_.linear2.geometry().k;
    kernel::PackRows pack{};
    pack.codes = activated(begin);
    pack.row_bytes = static_cast<ptrdiff_t>(owner_.workspace.activated_row);
    if (codec.encodes()) {
      std::byte* codes = owner_.workspace.codes.data();
      const size_t stride = owner_.workspace.codes_row;
      for (int64_t row = begin; row < end; ++row) {
        codec.encode(*plan_.ops, activated(row), activated_type, k, codes + static_cast<size_t>(row) * stride,
                     mid_scales() + row);
      }
      pack.codes = codes + static_cast<size_t>(begin) * stride;
      pack.row_bytes = static_cast<ptrdiff_t>(stride);
    }
    pack.rows = static_cast<int>(end - begin);
    pack.k = k;
    pack.out = packed2(block_index, tile);
    plan_.linear2.gemm->pack_rows(pack);
  }

  void linear2(const Block& block, int64_t block_index, int64_t piece, const Scratch& scratch) {
    const pack::Geometry& g = plan_.linear2.geometry();
    const auto epilogue = plan_.ops->linear2[static_cast<int>(plan_.scenario->epilogue2)];
    multiply(
        plan_.linear2, block, piece, scratch, [&](int64_t t) { return packed2(block_index, t); },
        [&](int64_t p, const pack::Panel& panel, int64_t begin, int rows) {
          const int64_t first = p * kernel::kPanelColumns;
          const comm::RowHome* home = owner_.homes(block.first_row + begin);
          uint16_t* places[kBlockRows];
          for (int r = 0; r < rows; ++r) places[r] = owner_.slot_row(home[r]) + first;
          kernel::Linear2Epilogue out{};
          out.c = scratch.tile;
          out.rows = rows;
          out.outputs = static_cast<int>(std::min<int64_t>(kernel::kPanelColumns, g.n - first));
          out.column_scales = panel.column_scales;
          out.row_scales = mid_scales() + block.first_row + begin;
          out.out = places;
          epilogue(out);
        });
  }

  // Step 7: the rows of a block are in their slots; count them at home.
  void return_rows(const Block& block) {
    const comm::RowHome* home = owner_.homes(block.first_row);
    for (int64_t r = 0; r < block.rows; ++r) {
      comm::count_one(session_, home[r].rank, done_counter(home[r].token),
                      static_cast<uint32_t>(home[r].used_slots));
    }
  }

  void combine(int64_t piece, const Scratch& scratch) {
    const int64_t topk = owner_.config.num_topk;
    auto* rows = reinterpret_cast<const uint16_t**>(scratch.codes);
    auto* weights = reinterpret_cast<float*>(scratch.strip);
    const int64_t end = std::min(tokens_, (piece + 1) * kCombineTokens);
    for (int64_t token = piece * kCombineTokens; token < end; ++token) {
      kernel::CombineRow sum{};
      for (int64_t slot = 0; slot < topk; ++slot) {
        if (owner_.token_map.expert(token, slot) < 0) continue;
        rows[sum.slots] = owner_.slot_row({owner_.group.rank(), static_cast<int16_t>(slot), 0, token});
        weights[sum.slots++] = router_weight(token, slot);
      }
      sum.rows = rows;
      sum.weights = weights;
      sum.h = owner_.config.hidden;
      uint16_t* y = static_cast<uint16_t*>(args_.y.data) + token * args_.y.strides[0];
      const bool contiguous = args_.y.strides[1] == 1;
      sum.out = contiguous ? y : reinterpret_cast<uint16_t*>(scratch.row);
      plan_.ops->combine(sum);
      if (contiguous) continue;
      for (int64_t h = 0; h < sum.h; ++h) y[h * args_.y.strides[1]] = sum.out[h];
    }
  }

  const MegaMoe::Impl& plan_;
  const CallArgs& args_;
  SymmBuffer::Impl& owner_;
  comm::Session& session_;
  const int64_t tokens_;
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  Status failure_;
};

void write_token_counts(const SymmBuffer::Impl& owner, const TensorRef& out) {
  if (!out.present()) return;
  const int64_t first_expert = owner.group.rank() * owner.experts_per_rank;
  for (int64_t local = 0; local < owner.local_experts; ++local) {
    static_cast<int32_t*>(out.data)[local * out.strides[0]] =
        static_cast<int32_t>(owner.rows.total(first_expert + local));
  }
}

}  // namespace
}  // namespace moe

Status MegaMoe::Impl::run(const CallArgs& args) {
  SymmBuffer::Impl& owner = buffer->impl();
  const moe::CallGuard guard(owner.busy);
  if (!guard.taken()) {
    return Status(Code::kInvalidArgument, "sym_buffer is in a call: expected one call at a time");
  }
  Status local = moe::check_call(args, owner.config, owner.local_experts);
  if (local.is_ok()) {
    local = owner.token_map.build(args.topk_ids, args.x_active_mask, {owner.config.num_experts, false});
  }
  MEGAMOE_RETURN_IF_ERROR(owner.exchange(local, local.is_ok() ? args.x.shape[0] : 0));
  owner.rows.build(owner.matrix, owner.group.rank());
  moe::Call call(*this, args);
  MEGAMOE_RETURN_IF_ERROR(call.run());
  moe::write_token_counts(owner, args.expert_token_nums);
  owner.leave(args.x.shape[0]);
  owner.completed = true;
  return Status::ok();
}

}  // namespace megamoe
