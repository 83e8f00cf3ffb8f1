// Records: how they lie in memory, how they travel, what they decide.
#include "comm/exchange.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/memory.h"
#include "base/quoted.h"
#include "comm/mapped_transport.h"

namespace megamoe::comm {
namespace {

/// Fixed part of a record; the counts of all experts follow. `call` is the last word written.
struct RecordHead {
  uint32_t call;  ///< low 32 bits of the call's number
  int32_t code;
  int64_t tokens;
  uint32_t message_bytes;
  char message[448];
  LayerMark layer;
  char unused[4];
};
static_assert(sizeof(RecordHead) == 512);

void publish(Session& session, const SymmLayout& layout, const LocalRecord& local, uint64_t call) {
  RecordHead head{};
  head.code = static_cast<int32_t>(local.status.code());
  head.tokens = local.tokens;
  head.layer = local.layer;
  head.message_bytes =
      static_cast<uint32_t>(base::fitting_bytes(local.status.message(), sizeof(head.message)));
  std::memcpy(head.message, local.status.message().data(), head.message_bytes);

  const size_t offset = layout.record(call, session.rank());
  // All copies of this record hold the same call number and only this rank writes them.
  const uint32_t before = word_at(session.segment(session.rank()), offset).load(std::memory_order_relaxed);
  const uint32_t step = static_cast<uint32_t>(call) - before;
  // The own record comes first in each peer's turn: start behind this rank so that not all hit rank 0 at
  // once.
  for (int i = 0; i < session.size(); ++i) {
    const int to = (session.rank() + 1 + i) % session.size();
    session.transport().put(to, offset + sizeof(head.call), &head.code, sizeof(head) - sizeof(head.call));
    session.transport().put(to, offset + sizeof(head), local.counts.data(), local.counts.size_bytes());
    session.add(to, offset, step);
  }
}

void read(const std::byte* record, int64_t rank, CallMatrix& matrix) {
  RecordHead head;
  std::memcpy(&head.code, record + sizeof(head.call), sizeof(head) - sizeof(head.call));
  Status& status = matrix.mutable_statuses()[rank];
  if (head.code == 0) {
    status = Status::ok();
  } else {
    status = Status(static_cast<Code>(head.code),
                    std::string(head.message, std::min<size_t>(head.message_bytes, sizeof(head.message))));
  }
  matrix.mutable_tokens()[rank] = head.tokens;
  matrix.mutable_layers()[rank] = head.layer;
  std::memcpy(matrix.mutable_counts(rank), record + sizeof(head), matrix.experts() * sizeof(uint32_t));
}

}  // namespace

size_t record_bytes(int64_t experts) {
  return base::round_up(sizeof(RecordHead) + static_cast<size_t>(experts) * sizeof(uint32_t),
                        base::kCacheLine);
}

Status verdict(const CallMatrix& matrix, const LayoutInput& input) {
  for (int64_t r = 0; r < matrix.ranks(); ++r) {
    const Status& status = matrix.status(r);
    if (status.is_ok()) continue;
    if (matrix.ranks() == 1) return status;
    return Status(status.code(), "rank " + std::to_string(r) + ": " + status.message());
  }
  for (int64_t r = 0; r < matrix.ranks(); ++r) {
    const int64_t first = std::min(r * input.experts_per_rank, matrix.experts());
    const int64_t end = std::min(first + input.experts_per_rank, matrix.experts());
    int64_t needed = 0;
    for (int64_t source = 0; source < matrix.ranks(); ++source) {
      for (int64_t e = first; e < end; ++e) needed += matrix.count(source, e);
    }
    if (needed > input.capacity) {
      return Status(Code::kCapacity, "max_recv_token_num = " + std::to_string(input.capacity) +
                                         ": expected room for the rows that rank " + std::to_string(r) +
                                         " receives in this call, needed " + std::to_string(needed) +
                                         ", available " + std::to_string(input.capacity));
    }
  }
  return Status::ok();
}

Status exchange(Session& session, const SymmLayout& layout, const LocalRecord& local, CallMatrix& matrix) {
  const uint64_t call = session.current_call();
  publish(session, layout, local, call);

  const std::byte* own = session.segment(session.rank());
  const auto here = [&](int source) {
    return word_at(const_cast<std::byte*>(own), layout.record(call, source))
               .load(std::memory_order_acquire) == static_cast<uint32_t>(call);
  };
  int next = 0;
  const auto all_here = [&] {
    while (next < session.size() && here(next)) ++next;
    return next == session.size();
  };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < session.size(); ++r) {
      if (!here(r)) ranks.push_back(r);
    }
    return rank_list(ranks);
  };
  MEGAMOE_RETURN_IF_ERROR(session.wait_until(all_here, Stage::kRecords, missing));

  for (int r = 0; r < session.size(); ++r) read(own + layout.record(call, r), r, matrix);
  return verdict(matrix, layout.input);
}

}  // namespace megamoe::comm
