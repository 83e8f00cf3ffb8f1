// What a SymmBuffer holds: the session with the other ranks, this rank's threads, and the memory every call
// reuses.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/futex.h"
#include "base/memory.h"
#include "base/team.h"
#include "comm/exchange.h"
#include "comm/layout.h"
#include "comm/rows.h"
#include "comm/session.h"
#include "kernel/registry.h"
#include "megamoe/mega_moe.h"
#include "moe/blocking.h"
#include "moe/limits.h"
#include "moe/scenarios.h"
#include "moe/schedule.h"
#include "moe/trace.h"
#include "route/token_map.h"

namespace megamoe {

namespace moe {

/// Private memory behind a set of rows: of a few blocks, which others take over when they are done, or of all
/// rows of a call where stages are kept. Pages are touched on first use, so a size is an upper bound and not
/// a cost.
struct Workspace {
  size_t packed_block1 = 0;  ///< bytes of one block's packed activations for Linear1
  size_t packed_block2 = 0;
  size_t activated_row = 0;  ///< bytes of one activated row
  size_t codes_row = 0;      ///< bytes of one requantised row
  size_t scales_row = 0;     ///< bytes of its scales
  size_t operand_row = 0;    ///< bytes of one row decoded for a matrix product
  size_t factors = 0;        ///< where in it the factors of its groups begin
  size_t linear1_row = 0;    ///< floats of one row kept of Linear1; 0 where stages are not kept
  size_t linear2_row = 0;    ///< elements of one row kept of Linear2; 0 likewise
  base::Pages packed1, packed2, activated, codes, scales, operands, linear1, linear2;

  static Result<Workspace> make(int64_t rows, int64_t blocks, const BufferConfig& config, Isa isa,
                                bool keep_stages);
  bool keeps_stages() const { return linear1_row != 0; }
  float* linear1_values(int64_t row) const {
    return reinterpret_cast<float*>(linear1.data()) + static_cast<size_t>(row) * linear1_row;
  }
  uint16_t* linear2_values(int64_t row) const {
    return reinterpret_cast<uint16_t*>(linear2.data()) + static_cast<size_t>(row) * linear2_row;
  }
  size_t bytes() const {
    return packed1.bytes() + packed2.bytes() + activated.bytes() + codes.bytes() + scales.bytes() +
           operands.bytes() + linear1.bytes() + linear2.bytes();
  }
};

/// This rank's own tokens on their way through its shared experts: row (expert, token) = expert * tokens +
/// token.
struct SharedRows {
  int64_t experts = 0;  ///< reserved for
  size_t code_stride = 0;
  size_t scale_stride = 0;
  Workspace workspace;
  base::Pages codes, scales, homes, slots;
  std::vector<uint32_t> arrived;
};

/// Memory of one thread.
struct Scratch {
  std::byte* tile = nullptr;     ///< [rows of a block][32] accumulators
  std::byte* strip = nullptr;    ///< one panel of weights made on demand
  std::byte* row = nullptr;      ///< one row of values
  std::byte* codes = nullptr;    ///< one row of codes
  std::byte* scales = nullptr;   ///< and its scales
  std::byte* slots = nullptr;    ///< combine rows of one token that are decoded or merged first
  std::byte* terms = nullptr;    ///< pointers and weights of the rows one token sums
  std::byte* group = nullptr;    ///< the same of the rows that are merged to one
  std::byte* members = nullptr;  ///< their slots
};

/// Which experts a row passes through.
enum RowSetIndex { kRouted = 0, kShared = 1 };
inline constexpr int kRowSets = 2;

/// Up to block_rows rows of one local expert: the unit that arrives, is computed and is returned.
struct Block {
  RowSetIndex set = kRouted;
  int64_t index = 0;      ///< in the memory of its set
  int64_t expert = 0;     ///< local index
  int64_t first_row = 0;  ///< in the memory of its set
  int64_t rows = 0;
  uint32_t* arrived = nullptr;  ///< its arrival counter
  int64_t turn = 0;             ///< in the order in which blocks are taken
  bool early = false;           ///< enough work comes after it to share out what threads have left
  int64_t room = 0;             ///< its packed rows in the workspace
  int64_t room_row = 0;         ///< its first row there
};

}  // namespace moe

class SymmBuffer::Impl {
 public:
  static Result<std::unique_ptr<Impl>> create(const Group& group, const BufferConfig& config,
                                              const BufferOptions& options);

  /// Whether it has memory for calls and may still be called.
  Status callable() const;
  /// Gathers all records of a new call. On an error verdict the call is over and the next one is legal.
  Status exchange(const Status& local, int64_t tokens, const comm::LayerMark& layer);
  /// Sets the used counters to zero and leaves the call.
  void leave(int64_t tokens);

  /// Parts of this rank's own pool, and the combine slot of a row on its home rank.
  const std::byte* pool(size_t part, size_t stride, int64_t row) const {
    return session->segment(group.rank()) + part + static_cast<size_t>(row) * stride;
  }
  const comm::RowHome* homes(int64_t row) const {
    return reinterpret_cast<const comm::RowHome*>(pool(layout.homes, sizeof(comm::RowHome), row));
  }
  std::byte* slot_row(const comm::RowHome& home) const {
    const auto index = static_cast<size_t>(home.token * config.num_topk + home.slot);
    return session->segment(home.rank) + layout.slots + index * layout.slot_stride();
  }
  std::byte* shared_slot_row(int64_t token, int64_t expert) const {
    return shared.slots.data() + static_cast<size_t>(token * shared.experts + expert) * layout_row_bytes();
  }
  /// Bytes between two bfloat16 rows of H values.
  size_t layout_row_bytes() const {
    return base::round_up(static_cast<size_t>(config.hidden) * sizeof(uint16_t), base::kCacheLine);
  }
  /// Bytes from the codes of a quantised combine row to its scales.
  size_t slot_scales() const {
    return base::round_up(static_cast<size_t>(combine_codec->row_bytes(config.hidden)), base::kCacheLine);
  }

  /// Blocks that have memory at the same time; 0 where all of a call have their own, because stages are kept
  /// or the rows of a call need less.
  int64_t rooms() const {
    const int64_t rooms = moe::Schedule::rooms_for(threads);
    return keep_stages || rooms * moe::kBlockRows > capacity ? 0 : rooms;
  }
  /// Memory for shared experts, kept for the largest number asked for. Not during a call.
  Status reserve_shared(int64_t experts);

  Group group;
  BufferConfig config;
  moe::Profile profile;
  const moe::Codec* codec;
  const moe::Codec* combine_codec;  ///< null where combine rows are bfloat16
  bool pass_through;                ///< x comes as codes
  bool keep_stages;
  bool plan_only;
  int threads;
  Isa isa;
  int64_t experts_per_rank, local_experts, capacity;
  comm::SymmLayout layout;
  std::unique_ptr<comm::Session> session;

  base::Team team;
  comm::CallMatrix matrix;
  comm::RowPlan rows;
  route::TokenMap token_map;
  std::unique_ptr<moe::Schedule> schedule;
  moe::Workspace workspace;
  moe::SharedRows shared;
  moe::TraceLog trace;
  std::vector<moe::Block> blocks;
  std::vector<moe::BlockPieces> block_pieces;
  std::vector<moe::Scratch> scratch;
  base::Pages scratch_pages;

  std::atomic<bool> busy{false};
  std::atomic<bool> destroyed{false};
  const uint32_t fork_generation = base::fork_generation();
  bool completed = false;  ///< the last call ended well: its stages can be read

 private:
  Impl(const Group& group, const BufferConfig& config, const BufferOptions& options, const moe::Codec* codec,
       const moe::Codec* combine_codec, const comm::SymmLayout& layout, int threads, Isa isa);
  static Result<std::unique_ptr<Impl>> prepare(const Group& group, const BufferConfig& config,
                                               const BufferOptions& options);
  Status allocate();
  /// For `rows` rows in a call, in at most so many blocks.
  Result<moe::Workspace> make_workspace(int64_t rows, int64_t most_blocks) const;
};

namespace moe {

/// Layout of the symmetric memory for checked settings.
Result<comm::SymmLayout> plan_layout(const BufferConfig& config, int64_t ranks);

/// Holds a buffer for one call; a second call at the same time is an error.
class CallGuard {
 public:
  explicit CallGuard(std::atomic<bool>& busy) : busy_(busy), taken_(!busy.exchange(true)) {}
  ~CallGuard() {
    if (taken_) busy_.store(false, std::memory_order_release);
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  bool taken() const { return taken_; }

 private:
  std::atomic<bool>& busy_;
  bool taken_;
};

}  // namespace moe
}  // namespace megamoe
