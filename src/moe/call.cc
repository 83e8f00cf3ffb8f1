// Scheduling of one call: blocks are laid out, then every thread claims pieces until nothing is left.
#include "moe/call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "comm/dispatch.h"

namespace megamoe::moe {
namespace {

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

// Those with the most rows and those with the fewest in turn: while one thread multiplies, memory is left to
// another that reads weights for few.
void alternate(std::vector<Block>& blocks) {
  const auto count = static_cast<int64_t>(blocks.size());
  for (int64_t i = 0; i < count; ++i) {
    blocks[static_cast<size_t>(i)].turn = 2 * i < count ? 2 * i : 2 * (count - 1 - i) + 1;
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.turn < b.turn; });
}

}  // namespace

Call::Call(const MegaMoe::Impl& plan, const CallArgs& args)
    : plan_(plan),
      args_(args),
      owner_(plan.buffer->impl()),
      session_(*owner_.session),
      tokens_(args.x.shape[0]) {}

Status Call::run() {
  plan_rows();
  plan_blocks();
  owner_.schedule->reset(owner_.block_pieces, base::ceil_div(tokens_, dispatch_tokens()),
                         base::ceil_div(tokens_, combine_tokens()));
  const Status started = owner_.team.run([this](int thread) { work(thread); });
  if (!started.is_ok()) {
    // Peers wait for this rank's rows: they learn why none come.
    const int rank = owner_.group.rank();
    return session_.fail(started.code(), rank, comm::Stage::kNone,
                         "rank " + std::to_string(rank) + ": " + started.message());
  }
  return failure_;
}

void Call::plan_rows() {
  const comm::SymmLayout& layout = owner_.layout;
  Rows& routed = rows_[kRouted];
  routed.plan = &plan_.routed();
  routed.workspace = &owner_.workspace;
  routed.codes = owner_.pool(layout.codes, layout.code_stride(), 0);
  routed.code_stride = layout.code_stride();
  routed.scales = owner_.pool(layout.scales, 0, 0);
  routed.scale_stride = static_cast<size_t>(layout.input.scale_row_bytes);
  routed.homes = owner_.homes(0);
  if (owner_.config.topk_weights_type == 1) {
    routed.weights = reinterpret_cast<const float*>(owner_.pool(layout.weights, sizeof(float), 0));
  }
  const SharedRows& memory = owner_.shared;
  Rows& shared = rows_[kShared];
  shared.plan = &plan_.shared();
  shared.workspace = &memory.workspace;
  shared.codes = memory.codes.data();
  shared.code_stride = memory.code_stride;
  shared.scales = memory.scales.data();
  shared.scale_stride = memory.scale_stride;
  shared.homes = reinterpret_cast<const comm::RowHome*>(memory.homes.data());
}

// Blocks of this rank's experts, with several ranks those with the most rows first.
void Call::plan_blocks() {
  std::vector<Block>& blocks = owner_.blocks;
  blocks.clear();
  const int64_t first_expert = owner_.group.rank() * owner_.experts_per_rank;
  auto* const arrived = comm::segment_at<uint32_t>(session_, session_.rank(), owner_.layout.arrived);
  for (int64_t local = 0; local < owner_.local_experts; ++local) {
    const int64_t expert = first_expert + local;
    for (int64_t b = 0; b < owner_.rows.blocks(expert); ++b) {
      const int64_t index = owner_.rows.first_block(expert) + b;
      blocks.push_back({kRouted, index, local,
                        owner_.rows.first_row(expert) + owner_.rows.block_begin(expert, b),
                        owner_.rows.block_rows(expert, b), arrived + index});
    }
  }
  std::fill(owner_.shared.arrived.begin(), owner_.shared.arrived.end(), 0u);
  const base::EvenSplit split = shared_split();
  for (int64_t expert = 0; expert < shared_experts(); ++expert) {
    for (int64_t b = 0; b < split.parts; ++b) {
      const int64_t index = expert * split.parts + b;
      blocks.push_back({kShared, index, expert, expert * tokens_ + split.begin(b), split.size(b),
                        owner_.shared.arrived.data() + index});
    }
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
    if (a.rows != b.rows) return a.rows > b.rows;
    return a.set != b.set ? a.set < b.set : a.first_row < b.first_row;
  });
  if (owner_.group.size() == 1) {
    alternate(blocks);
    mark_early();
  }
  owner_.block_pieces.clear();
  for (const Block& block : blocks) add_pieces(block);
}

// Where rows come from other ranks the last block to arrive may be any.
void Call::mark_early() {
  double later = 0;
  for (auto block = owner_.blocks.rbegin(); block != owner_.blocks.rend(); ++block) {
    const ExpertPlan& plan = *rows_of(*block).plan;
    const double ns = product_ns(plan.linear1, block->rows) + product_ns(plan.linear2, block->rows);
    block->early = later >= 2 * owner_.threads * ns;
    later += ns;
  }
}

void Call::add_pieces(const Block& block) {
  const ExpertPlan& plan = *rows_of(block).plan;
  const auto pieces = [&](const LinearPlan& linear) {
    return static_cast<uint32_t>(base::ceil_div(linear.geometry().panels(), piece_panels(linear, block)));
  };
  owner_.block_pieces.push_back(
      {{static_cast<uint32_t>(plan.linear1.tiles(block.rows)), pieces(plan.linear1),
        static_cast<uint32_t>(plan.linear2.tiles(block.rows)), pieces(plan.linear2)}});
}

bool Call::block_arrived(int64_t b) const {
  const Block& block = owner_.blocks[static_cast<size_t>(b)];
  const std::atomic_ref<uint32_t> arrived(*block.arrived);
  return arrived.load(std::memory_order_acquire) == static_cast<uint32_t>(block.rows);
}

bool Call::tokens_complete(int64_t piece) const {
  const int64_t end = std::min(tokens_, (piece + 1) * combine_tokens());
  for (int64_t token = piece * combine_tokens(); token < end; ++token) {
    if (comm::read_counter(session_, done_counter(token)) != expected(token)) return false;
  }
  return true;
}

void Call::work(int thread) {
  const auto arrived = [this](int64_t block) { return block_arrived(block); };
  const auto complete = [this](int64_t piece) { return tokens_complete(piece); };
  Schedule& schedule = *owner_.schedule;
  Schedule::Worker worker;
  while (!failed_.load(std::memory_order_relaxed)) {
    Piece piece = schedule.claim(worker, arrived, complete);
    if (!piece) {
      if (schedule.drained()) return;
      const TraceScope scope(owner_.trace, thread, TraceSpan::Stage::kWait);
      waiting_.fetch_add(1, std::memory_order_relaxed);
      Status waited = session_.wait_in_team(
          [&] { return (piece = schedule.claim(worker, arrived, complete)) || schedule.drained(); },
          [this] { return waiting_.load(std::memory_order_relaxed) == owner_.threads; },
          owner_.blocks.empty() ? comm::Stage::kReturn : comm::Stage::kBlocks);
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      if (!waited.is_ok()) return fail(std::move(waited));
      if (!piece) return;
    }
    {
      const TraceScope scope(owner_.trace, thread, trace_stage(piece.work));
      execute(piece, owner_.scratch[static_cast<size_t>(thread)]);
    }
    const Schedule::Event event = schedule.finish(worker, piece);
    if (event == Schedule::Event::kBlockDone) {
      return_rows(owner_.blocks[static_cast<size_t>(piece.block)]);
      schedule.retire();
    }
    if (event != Schedule::Event::kNothing || schedule.drained()) session_.ring(session_.rank());
  }
}

void Call::fail(Status status) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_.is_ok()) failure_ = std::move(status);
  failed_.store(true, std::memory_order_relaxed);
}

// Its memory is what the piece says, or its own where all blocks have some.
Block Call::block_of(const Piece& piece) const {
  Block block = owner_.blocks[static_cast<size_t>(piece.block)];
  const bool shares = owner_.rooms() > 0;
  block.room = shares ? piece.room : block.index;
  block.room_row = shares ? piece.room * kBlockRows : block.first_row;
  return block;
}

void Call::execute(const Piece& piece, const Scratch& scratch) {
  const auto block = [&] { return block_of(piece); };
  switch (piece.work) {
    case Work::kDispatch:
      return dispatch(piece.index, scratch);
    case Work::kPrepare:
      return prepare(block(), piece.index, scratch);
    case Work::kLinear1:
      return linear1(block(), piece, scratch);
    case Work::kRequantise:
      return requantise(block(), piece.index, scratch);
    case Work::kLinear2:
      return linear2(block(), piece, scratch);
    case Work::kCombine:
      return combine(piece.index, scratch);
    case Work::kNone:
      return;
  }
}

void Call::return_rows(const Block& block) {
  const comm::RowHome* home = rows_of(block).homes + block.first_row;
  for (int64_t r = 0; r < block.rows; ++r) {
    comm::count_one(session_, home[r].rank, done_counter(home[r].token),
                    static_cast<uint32_t>(home[r].expected));
  }
}

}  // namespace megamoe::moe
