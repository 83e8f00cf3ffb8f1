// The state of one call that the threads of a rank share: what each piece of work does.
#pragma once

#include <atomic>
#include <mutex>

#include "base/split.h"
#include "comm/dispatch.h"
#include "comm/session.h"
#include "moe/buffer.h"
#include "moe/plan.h"

namespace megamoe::moe {

class Call {
 public:
  Call(const MegaMoe::Impl& plan, const CallArgs& args);

  /// Steps 5 to 8 of the exchange protocol, in one parallel region.
  Status run();

 private:
  /// Where the rows of a set lie: the pool others write into, or this rank's own memory for shared experts.
  struct Rows {
    const ExpertPlan* plan = nullptr;
    const Workspace* workspace = nullptr;
    const std::byte* codes = nullptr;
    size_t code_stride = 0;
    const std::byte* scales = nullptr;
    size_t scale_stride = 0;
    const float* weights = nullptr;  ///< factors of the activated rows, or null
    const comm::RowHome* homes = nullptr;

    const std::byte* code_row(int64_t row) const { return codes + static_cast<size_t>(row) * code_stride; }
    const std::byte* scale_row(int64_t row) const { return scales + static_cast<size_t>(row) * scale_stride; }
    std::byte* packed1(int64_t room, int64_t tile) const {
      return workspace->packed1.data() + static_cast<size_t>(room) * workspace->packed_block1 +
             static_cast<size_t>(tile) * plan->linear1.tile_stride();
    }
    std::byte* packed2(int64_t room, int64_t tile) const {
      return workspace->packed2.data() + static_cast<size_t>(room) * workspace->packed_block2 +
             static_cast<size_t>(tile) * plan->linear2.tile_stride();
    }
    // The rest by rows of the workspace.
    std::byte* activated(int64_t row) const {
      return workspace->activated.data() + static_cast<size_t>(row) * workspace->activated_row;
    }
    std::byte* mid_codes(int64_t row) const {
      return workspace->codes.data() + static_cast<size_t>(row) * workspace->codes_row;
    }
    std::byte* mid_scales(int64_t row) const {
      return workspace->scales.data() + static_cast<size_t>(row) * workspace->scales_row;
    }
    /// Factors of a row's groups, beside its operand.
    float* factors(int64_t row) const {
      return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(operand(row)) + workspace->factors);
    }
    uint16_t* operand(int64_t row) const {
      return reinterpret_cast<uint16_t*>(workspace->operands.data() +
                                         static_cast<size_t>(row) * workspace->operand_row);
    }
  };

  // Scheduling (call.cc).
  void plan_rows();
  void plan_blocks();
  void mark_early();
  void add_pieces(const Block& block);
  int64_t piece_panels(const LinearPlan& linear, const Block& block) const {
    return panels_per_piece(linear, block.rows, owner_.threads, block.early);
  }
  void work(int thread);
  void fail(Status status);
  Block block_of(const Piece& piece) const;
  void execute(const Piece& piece, const Scratch& scratch);
  bool block_arrived(int64_t block) const;
  bool tokens_complete(int64_t piece) const;
  /// Step 7: the rows of a block are in their slots; count them at home.
  void return_rows(const Block& block);

  // Stages (call_stages.cc).
  void dispatch(int64_t piece, const Scratch& scratch);
  void send_token(int64_t token, const Scratch& scratch);
  comm::TokenRow encode_token(const Codec& codec, const std::byte* row, const Scratch& scratch) const;
  void share_codes(int64_t token, const comm::TokenRow& row);
  void share_nothing(int64_t token, const Scratch& scratch);
  static void gather_scales(const std::byte* scales, size_t stride, int64_t count, float* gathered);
  /// Rows of codes that become one packed tile.
  struct CodeRows {
    int count;
    int64_t place;  ///< of the first one in the workspace
    const std::byte* codes;
    ptrdiff_t stride;
    const std::byte* scales;
    ptrdiff_t scale_stride;
  };
  void pack_tile(const Rows& rows, const LinearPlan& linear, const Codec& codec, const CodeRows& from,
                 std::byte* out, const Scratch& scratch) const;
  void prepare(const Block& block, int64_t tile, const Scratch& scratch);
  void linear1(const Block& block, const Piece& piece, const Scratch& scratch);
  void keep_linear1(const Block& block, int64_t panel, int64_t first_row, kernel::Linear1Epilogue tile) const;
  void requantise(const Block& block, int64_t tile, const Scratch& scratch);
  void linear2(const Block& block, const Piece& piece, const Scratch& scratch);
  void combine(int64_t piece, const Scratch& scratch);
  struct Terms;
  void combine_token(int64_t token, const Scratch& scratch, bool next_follows);
  void add_group(int64_t token, int64_t first, Terms& terms, const Scratch& scratch);
  const uint16_t* returned_row(int64_t token, int64_t slot, std::byte* decoded, const Scratch& scratch) const;
  /// Weights that a thread will want soon.
  struct Coming {
    const std::byte* from = nullptr;
    int64_t bytes = 0;
  };
  /// What a product with the rows of a block takes at once from a panel on; what lies beside the codes is
  /// announced here.
  static Coming coming(const LinearPlan& linear, const Block& block, int64_t panel);
  Coming after(const Block& block, const Piece& piece) const;
  template <class Packed, class Consume>
  void multiply(const LinearPlan& linear, const Codec& codec, const Block& block, const Piece& piece,
                const Scratch& scratch, Packed&& packed, Consume&& consume);

  /// Tokens of one dispatch piece and of one combine piece.
  int64_t dispatch_tokens() const { return plan_.blocking.sizes.dispatch_tokens; }
  int64_t combine_tokens() const { return plan_.blocking.sizes.combine_tokens; }
  const Rows& rows_of(const Block& block) const { return rows_[block.set]; }
  std::byte* place(const Block& block, const comm::RowHome& home) const;
  int64_t shared_experts() const { return plan_.shared().experts; }
  /// This rank's tokens in blocks, the same for every shared expert.
  base::EvenSplit shared_split() const { return {tokens_, base::ceil_div(tokens_, kBlockRows)}; }
  /// Rows that come back for a token: its used slots and its shared experts.
  uint32_t expected(int64_t token) const {
    return owner_.token_map.used(token) + static_cast<uint32_t>(shared_experts());
  }
  size_t done_counter(int64_t token) const {
    return owner_.layout.done + static_cast<size_t>(token) * sizeof(uint32_t);
  }
  float router_weight(int64_t token, int64_t slot) const;
  /// Weight of a row at home: 1 where it was applied before Linear2.
  float term_weight(int64_t token, int64_t slot) const {
    return owner_.config.topk_weights_type == 1 ? 1.f : router_weight(token, slot);
  }
  /// Ranks whose rows of a token are merged to one: a rank, or a domain of neighbouring ranks. The rows lie
  /// in memory that this rank reads, so it merges them itself, with the roundings of a merge on the way.
  int64_t merge_group(int32_t expert) const {
    const int64_t rank = owner_.rows.owner(expert);
    return owner_.config.combine_comm_mode == kMergeDomains ? rank / owner_.config.rank_num_per_server : rank;
  }

  const MegaMoe::Impl& plan_;
  const CallArgs& args_;
  SymmBuffer::Impl& owner_;
  comm::Session& session_;
  const int64_t tokens_;
  Rows rows_[kRowSets];
  std::atomic<int> waiting_{0};  ///< threads that have no work at hand
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  Status failure_;
};

}  // namespace megamoe::moe
