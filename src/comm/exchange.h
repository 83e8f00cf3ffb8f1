// Steps 2 to 4 of a call: publish this rank's record, wait for all records, agree on the verdict.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/layout.h"
#include "comm/session.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// What of its layer a rank must have in common with the others: words whose meaning is the caller's.
using LayerMark = std::array<uint32_t, 10>;

/// What one rank announces before any row moves.
struct LocalRecord {
  Status status;  ///< an argument error found locally travels to every rank
  int64_t tokens = 0;
  LayerMark layer{};
  std::span<const uint32_t> counts;  ///< [experts] rows this rank sends to each expert of the group
};

/// The matrix every rank holds after the exchange. Allocated once, reused by every call.
class CallMatrix {
 public:
  CallMatrix(int64_t ranks, int64_t experts)
      : ranks_(ranks),
        experts_(experts),
        statuses_(ranks),
        tokens_(ranks),
        layers_(ranks),
        counts_(ranks * experts) {}
  int64_t ranks() const { return ranks_; }
  int64_t experts() const { return experts_; }
  /// What the rank found wrong with its own arguments.
  const Status& status(int64_t rank) const { return statuses_[rank]; }
  int64_t tokens(int64_t rank) const { return tokens_[rank]; }
  const LayerMark& layer(int64_t rank) const { return layers_[rank]; }
  uint32_t count(int64_t source, int64_t expert) const { return counts_[source * experts_ + expert]; }
  Status* mutable_statuses() { return statuses_.data(); }
  int64_t* mutable_tokens() { return tokens_.data(); }
  LayerMark* mutable_layers() { return layers_.data(); }
  uint32_t* mutable_counts(int64_t source) { return counts_.data() + source * experts_; }

 private:
  int64_t ranks_, experts_;
  std::vector<Status> statuses_;
  std::vector<int64_t> tokens_;
  std::vector<LayerMark> layers_;
  std::vector<uint32_t> counts_;
};

/// Bytes of one record for a number of experts, a multiple of 64.
size_t record_bytes(int64_t experts);

/// The outcome that every rank reads from the same matrix: the first bad status, else too many rows for a
/// rank, else ok.
Status verdict(const CallMatrix& matrix, const LayoutInput& input);

/// Publishes `local` for the session's current call and gathers all records into `matrix`. Returns the same
/// verdict on every rank: the first bad status ("rank 2: topk_ids[3][1] = 64: ..."), or too many rows for
/// some rank's capacity with needed and available numbers; or this rank's view of a failure.
Status exchange(Session& session, const SymmLayout& layout, const LocalRecord& local, CallMatrix& matrix);

}  // namespace megamoe::comm
