// Reset and completion of the schedule.
#include "moe/schedule.h"

namespace megamoe::moe {

Schedule::Schedule(int64_t max_blocks, int64_t max_combine_pieces, int64_t rooms)
    : blocks_(std::make_unique<Block[]>(static_cast<size_t>(max_blocks))),
      combine_taken_(std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(max_combine_pieces))),
      room_taken_(std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(rooms))),
      rooms_(rooms) {}

void Schedule::reset(std::span<const BlockPieces> blocks, int64_t dispatch_pieces, int64_t combine_pieces) {
  constexpr auto relaxed = std::memory_order_relaxed;  // the start of the parallel region publishes it
  block_count_ = static_cast<int64_t>(blocks.size());
  dispatch_pieces_ = dispatch_pieces;
  combine_pieces_ = combine_pieces;
  for (int64_t b = 0; b < block_count_; ++b) {
    Block& block = blocks_[b];
    block.state.store({kWaiting, 0}, relaxed);
    block.taken.store(0, relaxed);
    for (int s = 0; s < 4; ++s) {
      block.claimed[s].store(0, relaxed);
      block.finished[s].store(0, relaxed);
      block.pieces[s] = blocks[static_cast<size_t>(b)].counts[s];
    }
  }
  for (int64_t room = 0; room < rooms_; ++room) room_taken_[room].store(0, relaxed);
  for (int64_t g = 0; g < combine_pieces; ++g) combine_taken_[g].store(0, relaxed);
  dispatch_next_.store(0, relaxed);
  block_hint_.store(0, relaxed);
  combine_hint_.store(0, relaxed);
  combine_claimed_.store(0, relaxed);
  open_blocks_.store(block_count_, relaxed);
}

Schedule::State Schedule::open(Worker& worker, Block& block) {
  const int64_t room = enter_room(worker.room);
  if (room < 0) return block.state.load(std::memory_order_acquire);
  State state{kWaiting, 0};
  const State opened{1, static_cast<uint32_t>(room)};
  if (!block.state.compare_exchange_strong(state, opened, std::memory_order_acq_rel)) {
    leave_room(room);
    return state;
  }
  worker.room = room;
  return opened;
}

int64_t Schedule::enter_room(int64_t wanted) {
  if (rooms_ == 0) return 0;
  for (int64_t i = 0; i < rooms_; ++i) {
    const int64_t room = (wanted + i) % rooms_;
    std::atomic<uint8_t>& taken = room_taken_[room];
    if (taken.load(std::memory_order_relaxed) == 0 && taken.exchange(1, std::memory_order_acquire) == 0) {
      return room;
    }
  }
  return -1;
}

void Schedule::leave_room(int64_t room) {
  if (rooms_ > 0) room_taken_[room].store(0, std::memory_order_release);
}

Schedule::Event Schedule::finish(Worker& worker, const Piece& piece) {
  if (piece.work == Work::kDispatch || piece.work == Work::kCombine) return Event::kNothing;
  Block& block = blocks_[piece.block];
  const uint32_t stage = static_cast<uint32_t>(piece.work);
  const uint32_t before = block.finished[stage - 1].fetch_add(1, std::memory_order_acq_rel);
  if (before + 1 != block.pieces[stage - 1]) return Event::kNothing;
  block.state.store({stage + 1, static_cast<uint32_t>(piece.room)}, std::memory_order_release);
  if (stage + 1 == kDone) {
    leave_room(piece.room);
    worker.room = piece.room;
    return Event::kBlockDone;
  }
  worker.block = piece.block;
  return Event::kStageDone;
}

}  // namespace megamoe::moe
