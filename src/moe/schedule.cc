// Reset and completion of the schedule.
#include "moe/schedule.h"

namespace megamoe::moe {

Schedule::Schedule(int64_t max_blocks, int64_t max_combine_pieces)
    : blocks_(std::make_unique<Block[]>(static_cast<size_t>(max_blocks))),
      combine_taken_(std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(max_combine_pieces))) {}

void Schedule::reset(std::span<const BlockPieces> blocks, int64_t dispatch_pieces, int64_t combine_pieces) {
  constexpr auto relaxed = std::memory_order_relaxed;  // the start of the parallel region publishes it
  block_count_ = static_cast<int64_t>(blocks.size());
  dispatch_pieces_ = dispatch_pieces;
  combine_pieces_ = combine_pieces;
  for (int64_t b = 0; b < block_count_; ++b) {
    Block& block = blocks_[b];
    block.stage.store(kWaiting, relaxed);
    block.taken.store(0, relaxed);
    for (int s = 0; s < 4; ++s) {
      block.claimed[s].store(0, relaxed);
      block.finished[s].store(0, relaxed);
      block.pieces[s] = blocks[static_cast<size_t>(b)].counts[s];
    }
  }
  for (int64_t g = 0; g < combine_pieces; ++g) combine_taken_[g].store(0, relaxed);
  dispatch_next_.store(0, relaxed);
  block_hint_.store(0, relaxed);
  combine_hint_.store(0, relaxed);
  combine_claimed_.store(0, relaxed);
  open_blocks_.store(block_count_, relaxed);
}

Schedule::Event Schedule::finish(Worker& worker, const Piece& piece) {
  if (piece.work == Work::kDispatch || piece.work == Work::kCombine) return Event::kNothing;
  Block& block = blocks_[piece.block];
  const uint32_t stage = static_cast<uint32_t>(piece.work);
  const uint32_t before = block.finished[stage - 1].fetch_add(1, std::memory_order_acq_rel);
  if (before + 1 != block.pieces[stage - 1]) return Event::kNothing;
  block.stage.store(stage + 1, std::memory_order_release);
  if (stage + 1 == kDone) return Event::kBlockDone;
  worker.block = piece.block;
  return Event::kStageDone;
}

}  // namespace megamoe::moe
