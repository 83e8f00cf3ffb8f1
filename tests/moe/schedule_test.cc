// The schedule hands out every piece once, in a legal order, to any number of threads.
#include "moe/schedule.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

namespace megamoe::moe {
namespace {

struct Seen {
  std::atomic<uint32_t> pieces[4] = {};
};

// Runs a call to its end on `threads` threads and checks the order of stages inside every block.
void run_call(Schedule& schedule, const std::vector<BlockPieces>& blocks, int64_t dispatch, int64_t combine,
              int threads, int64_t rooms) {
  schedule.reset(blocks, dispatch, combine);
  std::vector<std::atomic<int64_t>> guests(static_cast<size_t>(rooms));  // block + 1, or 0
  std::vector<Seen> seen(blocks.size());
  std::vector<std::atomic<int>> dispatched(static_cast<size_t>(dispatch));
  std::vector<std::atomic<int>> combined(static_cast<size_t>(combine));
  std::atomic<int64_t> sent{0};
  std::atomic<int64_t> returned{0};
  const auto work = [&] {
    Schedule::Worker worker;
    while (!schedule.drained()) {
      const Piece piece = schedule.claim(
          worker, [&](int64_t) { return sent.load() == dispatch; },
          [&](int64_t) { return returned.load() == static_cast<int64_t>(blocks.size()); });
      if (!piece) continue;
      if (piece.work == Work::kDispatch) {
        EXPECT_EQ(dispatched[static_cast<size_t>(piece.index)].fetch_add(1), 0);
        sent.fetch_add(1);
      } else if (piece.work == Work::kCombine) {
        EXPECT_EQ(combined[static_cast<size_t>(piece.index)].fetch_add(1), 0);
        EXPECT_EQ(returned.load(), static_cast<int64_t>(blocks.size()));
      } else {
        const auto stage = static_cast<size_t>(piece.work) - 1;
        const auto block = static_cast<size_t>(piece.block);
        if (stage > 0) {
          EXPECT_EQ(seen[block].pieces[stage - 1].load(), blocks[block].counts[stage - 1]);
        }
        EXPECT_LT(piece.index, blocks[block].counts[stage]);
        if (rooms > 0) {
          int64_t before = 0;
          guests[static_cast<size_t>(piece.room)].compare_exchange_strong(before, piece.block + 1);
          EXPECT_TRUE(before == 0 || before == piece.block + 1) << "two blocks in one room";
        }
        seen[block].pieces[stage].fetch_add(1);
        uint32_t done = 0;
        for (size_t s = 0; s < 4; ++s) done += seen[block].pieces[s].load();
        const std::array<uint32_t, 4> counts = std::to_array(blocks[block].counts);
        // Before the schedule hears of it: afterwards the room may be another block's.
        if (rooms > 0 && done == counts[0] + counts[1] + counts[2] + counts[3]) {
          guests[static_cast<size_t>(piece.room)].store(0);
        }
      }
      if (schedule.finish(worker, piece) == Schedule::Event::kBlockDone) {
        returned.fetch_add(1);
        schedule.retire();
      }
    }
  };
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) team.emplace_back(work);
  for (std::thread& thread : team) thread.join();
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (size_t s = 0; s < 4; ++s) EXPECT_EQ(seen[b].pieces[s].load(), blocks[b].counts[s]);
  }
  for (const auto& count : dispatched) EXPECT_EQ(count.load(), 1);
  for (const auto& count : combined) EXPECT_EQ(count.load(), 1);
}

TEST(Schedule, HandsOutEveryPieceOnce) {
  std::mt19937 random(7);
  for (const int64_t rooms : {0, 1, 2, 7}) {
    Schedule schedule(64, 64, rooms);
    for (int round = 0; round < 100; ++round) {
      std::vector<BlockPieces> blocks(random() % 12);
      for (BlockPieces& block : blocks) {
        for (uint32_t& count : block.counts) count = 1 + random() % 5;
      }
      run_call(schedule, blocks, random() % 6, 1 + random() % 8, 1 + static_cast<int>(random() % 3), rooms);
    }
  }
}

TEST(Schedule, AnEmptyCallIsDrained) {
  Schedule schedule(1, 1, 1);
  schedule.reset({}, 0, 0);
  EXPECT_TRUE(schedule.drained());
  Schedule::Worker worker;
  EXPECT_FALSE(schedule.claim(
      worker, [](int64_t) { return true; }, [](int64_t) { return true; }));
}

const auto kYes = [](int64_t) { return true; };
const auto kNo = [](int64_t) { return false; };

TEST(Schedule, TakesDispatchFirstAndTheFirstOpenBlockNext) {
  Schedule schedule(2, 1, 0);
  const std::vector<BlockPieces> blocks(2, BlockPieces{{1, 2, 1, 1}});
  schedule.reset(blocks, 1, 1);
  Schedule::Worker worker;
  EXPECT_EQ(schedule.claim(worker, kYes, kNo).work, Work::kDispatch);
  const Piece prepare = schedule.claim(worker, kYes, kNo);
  EXPECT_EQ(prepare.work, Work::kPrepare);
  EXPECT_EQ(prepare.block, 0);
  EXPECT_EQ(schedule.claim(worker, kYes, kNo).block,
            1);  // block 0 has nothing to claim until its piece is finished
  EXPECT_FALSE(schedule.claim(worker, kYes, kNo));
  EXPECT_EQ(schedule.finish(worker, prepare), Schedule::Event::kStageDone);
  EXPECT_EQ(schedule.claim(worker, kYes, kNo).work, Work::kLinear1);
  EXPECT_EQ(schedule.claim(worker, kYes, kYes).work, Work::kCombine);
}

TEST(Schedule, ABlockStartsWhereThereIsARoom) {
  Schedule schedule(3, 0, 2);
  schedule.reset(std::vector<BlockPieces>(3, BlockPieces{{1, 1, 1, 1}}), 0, 0);
  Schedule::Worker one, two;
  Piece a = schedule.claim(one, kYes, kNo);
  Piece b = schedule.claim(two, kYes, kNo);
  EXPECT_NE(a.room, b.room);
  EXPECT_FALSE(schedule.claim(two, kYes, kNo)) << "both rooms are taken";
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t room = b.room;
    schedule.finish(two, b);
    b = schedule.claim(two, kYes, kNo);
    EXPECT_EQ(b.room, room);
  }
  EXPECT_EQ(b.block, 2) << "in the room that the thread had before";
}

// Two threads: each has a block of its own; who has none left helps the other from the far end.
TEST(Schedule, AThreadStaysWithItsBlockAndOthersHelpFromTheFarEnd) {
  Schedule schedule(3, 1, 0);
  const std::vector<BlockPieces> blocks{{{1, 4, 1, 2}}, {{1, 1, 1, 1}}, {{1, 1, 1, 1}}};
  schedule.reset(blocks, 0, 0);
  Schedule::Worker one, two;
  Piece a = schedule.claim(one, kYes, kNo);
  Piece b = schedule.claim(two, kYes, kNo);
  EXPECT_EQ(a.block, 0);
  EXPECT_EQ(b.block, 1);
  schedule.finish(one, a);
  a = schedule.claim(one, kYes, kNo);
  EXPECT_EQ(a.block, 0);
  EXPECT_EQ(a.work, Work::kLinear1);
  EXPECT_EQ(a.index, 0);
  EXPECT_EQ(a.next, 1);
  for (Work work : {Work::kPrepare, Work::kLinear1, Work::kRequantise, Work::kLinear2}) {
    EXPECT_EQ(b.work, work);
    EXPECT_EQ(b.block, 1);
    EXPECT_EQ(b.next, -1);
    EXPECT_EQ(b.next_block, work == Work::kLinear2 ? 2 : -1);
    schedule.finish(two, b);
    b = schedule.claim(two, kYes, kNo);
  }
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(b.block, 2);
    schedule.finish(two, b);
    b = schedule.claim(two, kYes, kNo);
  }
  EXPECT_EQ(b.block, 0);
  EXPECT_EQ(b.index, 3);
  EXPECT_EQ(b.next, 2);
  schedule.finish(two, b);
  b = schedule.claim(two, kYes, kNo);
  EXPECT_EQ(b.index, 2);
  schedule.finish(one, a);
  a = schedule.claim(one, kYes, kNo);
  EXPECT_EQ(a.index, 1);
  EXPECT_EQ(a.next, -1);
  EXPECT_FALSE(schedule.claim(two, kYes, kNo));
  schedule.finish(one, a);
  EXPECT_EQ(schedule.finish(two, b), Schedule::Event::kStageDone);
  EXPECT_EQ(schedule.claim(two, kYes, kNo).work, Work::kRequantise);  // who finished the stage goes on
}

}  // namespace
}  // namespace megamoe::moe
