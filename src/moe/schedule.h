// Which piece of work a thread takes next: a state machine over blocks of rows, without kernels, memory or
// ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

namespace megamoe::moe {

/// Kinds of work in the order a row passes through them.
enum class Work : uint32_t { kDispatch, kPrepare, kLinear1, kRequantise, kLinear2, kCombine, kNone };

/// One claimed piece. `block` is an index into the blocks of the call (stages of a block only).
struct Piece {
  Work work = Work::kNone;
  int64_t block = 0;
  int64_t index = 0;
  /// What this thread will most likely take next, so that its weights can be on their way: a piece of the
  /// same stage, else -1; and the block after this one, once nothing of this one is left to take, else -1.
  int64_t next = -1;
  int64_t next_block = -1;
  int64_t room = 0;  ///< memory that the block has from its first stage to its last
  explicit operator bool() const { return work != Work::kNone; }
};

/// Pieces of the four stages of a block: prepare, Linear1, requantise, Linear2. All at least 1.
struct BlockPieces {
  uint32_t counts[4];
};

/// The pieces of one call on one rank. Any number of threads claim and finish; a block moves to its next
/// stage when the last piece of a stage is finished, and nothing else orders anything. A thread stays with
/// its block as long as there is something to do, so that it reads weights as one stream and finds the rows
/// in its cache; threads without a block of their own help from the far end. A block starts where there is a
/// room for it, best the one its thread had before, which its cache still holds.
class Schedule {
 public:
  /// Rooms that threads can fill: each is in one block and has another one as its own.
  static int64_t rooms_for(int threads) { return 2 * int64_t{threads} + 1; }

  /// `rooms` at least 1: with fewer than threads can fill some wait; 0: blocks need none.
  Schedule(int64_t max_blocks, int64_t max_combine_pieces, int64_t rooms);

  /// What a thread works on, kept by the thread for the time of a call.
  struct Worker {
    int64_t block = -1;
    int64_t reserved = -1;  ///< its next block
    int64_t room = 0;       ///< the one it was in last
  };

  /// Starts a call. Blocks are taken in the order given.
  void reset(std::span<const BlockPieces> blocks, int64_t dispatch_pieces, int64_t combine_pieces);

  /// The next piece: dispatch first, so that other ranks get their rows; then a completed group of tokens if
  /// one is at hand; then the worker's block, the first block that nobody has, any block in order; then any
  /// completed group. `arrived(block)` and `complete(piece)` are asked, with acquire semantics on their side,
  /// only where the answer matters.
  template <class Arrived, class Complete>
  Piece claim(Worker& worker, Arrived&& arrived, Complete&& complete);

  /// What finishing a piece made possible.
  enum class Event { kNothing, kStageDone, kBlockDone };
  /// Marks a piece as done. kStageDone: pieces of the next stage can be claimed, and the worker goes on with
  /// the block. kBlockDone: all rows of the block are computed; the caller returns them and then calls
  /// retire().
  Event finish(Worker& worker, const Piece& piece);
  void retire() { open_blocks_.fetch_sub(1, std::memory_order_acq_rel); }

  /// Every block is retired and every combine piece claimed: nothing is left to wait for.
  bool drained() const {
    return open_blocks_.load(std::memory_order_acquire) == 0 &&
           combine_claimed_.load(std::memory_order_acquire) == combine_pieces_;
  }

 private:
  static constexpr uint32_t kWaiting = 0;  // stage 1..4 = Work::kPrepare..kLinear2
  static constexpr uint32_t kDone = 5;

  struct State {
    uint32_t stage;
    uint32_t room;
  };

  struct alignas(64) Block {
    std::atomic<State> state{};
    std::atomic<uint32_t> taken{0};  ///< a thread has it as its block
    /// Pieces claimed from the front, and in the upper half from the back. Counts on past the last piece.
    std::atomic<uint64_t> claimed[4] = {};
    std::atomic<uint32_t> finished[4] = {};
    uint32_t pieces[4] = {};
  };
  enum class End { kFront, kBack };
  static constexpr uint64_t kOneBack = uint64_t{1} << 32;

  template <class Arrived>
  Piece take(Worker& worker, int64_t b, End end, Arrived& arrived);
  /// Starts a block, unless another thread has or no room is free; its state then.
  State open(Worker& worker, Block& block);
  int64_t enter_room(int64_t wanted);
  void leave_room(int64_t room);
  /// The first block that nobody has and that is not finished, or -1; now the caller has it.
  template <class Wanted>
  int64_t reserve(Wanted&& wanted);

  template <class Complete>
  bool try_combine(int64_t piece, Complete& complete) {
    if (combine_taken_[piece].load(std::memory_order_relaxed) != 0 || !complete(piece)) return false;
    if (combine_taken_[piece].exchange(1, std::memory_order_relaxed) != 0) return false;
    combine_claimed_.fetch_add(1, std::memory_order_acq_rel);
    return true;
  }
  // Moves a hint over entries that need no look any more; a stale hint costs time, never correctness.
  static void advance(std::atomic<int64_t>& hint, int64_t from) {
    hint.compare_exchange_strong(from, from + 1, std::memory_order_relaxed);
  }

  std::unique_ptr<Block[]> blocks_;
  std::unique_ptr<std::atomic<uint8_t>[]> combine_taken_;
  std::unique_ptr<std::atomic<uint8_t>[]> room_taken_;
  int64_t rooms_ = 0;
  int64_t block_count_ = 0;
  int64_t dispatch_pieces_ = 0;
  int64_t combine_pieces_ = 0;
  alignas(64) std::atomic<int64_t> dispatch_next_{0};
  alignas(64) std::atomic<int64_t> block_hint_{0};
  std::atomic<int64_t> combine_hint_{0};
  alignas(64) std::atomic<int64_t> open_blocks_{0};
  std::atomic<int64_t> combine_claimed_{0};
};

template <class Arrived>
Piece Schedule::take(Worker& worker, int64_t b, End end, Arrived& arrived) {
  Block& block = blocks_[b];
  State state = block.state.load(std::memory_order_acquire);
  if (state.stage == kWaiting) {
    if (!arrived(b)) return {};
    state = open(worker, block);
  }
  if (state.stage == kWaiting || state.stage == kDone) return {};
  const uint32_t s = state.stage - 1;
  const auto left = [&](uint64_t claimed) {
    return int64_t{block.pieces[s]} - static_cast<int64_t>(claimed & (kOneBack - 1)) -
           static_cast<int64_t>(claimed / kOneBack);
  };
  if (left(block.claimed[s].load(std::memory_order_relaxed)) <= 0) return {};
  const uint64_t before =
      block.claimed[s].fetch_add(end == End::kFront ? 1 : kOneBack, std::memory_order_relaxed);
  const int64_t remaining = left(before) - 1;
  if (remaining < 0) return {};
  const int64_t front = static_cast<int64_t>(before & (kOneBack - 1));
  Piece piece{static_cast<Work>(state.stage), b, end == End::kFront ? front : front + remaining};
  piece.room = state.room;
  if (remaining > 0) piece.next = end == End::kFront ? piece.index + 1 : piece.index - 1;
  return piece;
}

template <class Wanted>
int64_t Schedule::reserve(Wanted&& wanted) {
  for (int64_t b = block_hint_.load(std::memory_order_relaxed); b < block_count_; ++b) {
    Block& block = blocks_[b];
    if (block.state.load(std::memory_order_relaxed).stage == kDone) {
      advance(block_hint_, b);
      continue;
    }
    if (block.taken.load(std::memory_order_relaxed) != 0 || !wanted(b)) continue;
    if (block.taken.exchange(1, std::memory_order_relaxed) == 0) return b;
  }
  return -1;
}

template <class Arrived, class Complete>
Piece Schedule::claim(Worker& worker, Arrived&& arrived, Complete&& complete) {
  if (dispatch_next_.load(std::memory_order_relaxed) < dispatch_pieces_) {
    const int64_t index = dispatch_next_.fetch_add(1, std::memory_order_relaxed);
    if (index < dispatch_pieces_) return {Work::kDispatch, 0, index};
  }
  int64_t group = combine_hint_.load(std::memory_order_relaxed);
  while (group < combine_pieces_ && combine_taken_[group].load(std::memory_order_relaxed) != 0) {
    advance(combine_hint_, group);
    ++group;
  }
  if (group < combine_pieces_ && try_combine(group, complete)) return {Work::kCombine, 0, group};

  Piece piece;
  if (worker.block >= 0) piece = take(worker, worker.block, End::kFront, arrived);
  if (!piece && worker.reserved >= 0 && (piece = take(worker, worker.reserved, End::kFront, arrived))) {
    worker.block = worker.reserved;
    worker.reserved = -1;
  }
  while (!piece) {
    const int64_t b = reserve(arrived);
    if (b < 0) break;
    worker.block = b;
    piece = take(worker, b, End::kFront, arrived);
    if (piece || blocks_[b].state.load(std::memory_order_relaxed).stage != kWaiting) continue;
    blocks_[b].taken.store(0, std::memory_order_relaxed);  // there was no room
    worker.block = -1;
    break;
  }
  if (piece) {
    if (piece.work == Work::kLinear2 && piece.next < 0) {
      if (worker.reserved < 0) worker.reserved = reserve([](int64_t) { return true; });
      piece.next_block = worker.reserved;
    }
    return piece;
  }
  for (int64_t b = block_hint_.load(std::memory_order_relaxed); b < block_count_; ++b) {
    if (Piece helped = take(worker, b, End::kBack, arrived)) return helped;
  }

  for (int64_t g = group; g < combine_pieces_; ++g) {
    if (try_combine(g, complete)) return {Work::kCombine, 0, g};
  }
  return {};
}

}  // namespace megamoe::moe
