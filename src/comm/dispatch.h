// Step 5 of a call: one row into the pool of the rank that owns its expert, then its block's counter.
#pragma once

#include <cstdint>

#include "comm/layout.h"
#include "comm/rows.h"
#include "comm/session.h"

namespace megamoe::comm {

/// One encoded token, the same for every expert it goes to.
struct TokenRow {
  const void* codes;
  const void* scales;  ///< scale_row_bytes bytes
};

/// Adds one to a counter in `rank`'s segment and wakes that rank when the counter reaches `target`.
void count_one(Session& session, int rank, size_t offset, uint32_t target);

/// Sends the row of (home.token, home.slot) to `expert`; `order` is its position among this rank's rows of
/// that expert.
void send_row(Session& session, const SymmLayout& layout, const RowPlan& plan, int64_t expert, uint32_t order,
              const TokenRow& row, float weight, const RowHome& home);

/// Address of a part of a segment this process can reach.
template <class T>
T* segment_at(const Session& session, int rank, size_t offset) {
  return reinterpret_cast<T*>(session.segment(rank) + offset);
}

/// Reads a counter of this rank's own segment with acquire order.
uint32_t read_counter(const Session& session, size_t offset);

}  // namespace megamoe::comm
