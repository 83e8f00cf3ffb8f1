// The memory of one rank that its peers write into: one struct computes every offset, and everyone who
// touches the memory uses it. n is the number of the call; records exist in two generations, everything else
// once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/memory.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// What the offsets depend on; equal on all ranks.
struct LayoutInput {
  int64_t ranks = 1;
  int64_t experts = 0;           ///< of all ranks
  int64_t experts_per_rank = 0;  ///< most experts of one rank
  int64_t max_tokens = 0;        ///< per rank and call
  int64_t topk = 0;
  int64_t capacity = 0;         ///< rows one rank can receive
  int64_t block_rows = 0;       ///< rows counted by one arrival counter
  int64_t code_row_bytes = 0;   ///< one row of token codes
  int64_t scale_row_bytes = 0;  ///< scales of one row of token codes, 0 = none
  int64_t slot_row_bytes = 0;   ///< one combine row
};

/// Where a row came from and goes back to.
struct RowHome {
  int32_t rank;
  int16_t slot;
  uint16_t expected;  ///< rows that come back for this token: the count its combine waits for
  int64_t token;
};

/// Offsets in bytes from the start of a rank's segment; every part starts on a cache line.
struct SymmLayout {
  LayoutInput input;
  size_t record_bytes = 0;  ///< one record, see exchange.h
  size_t header = 0;        ///< SegmentHeader
  size_t records = 0;       ///< [2 generations][ranks] records
  size_t arrived = 0;       ///< uint32 [max_blocks]
  size_t codes = 0;         ///< [capacity][code_row_bytes rounded up to 64]
  size_t scales = 0;        ///< [capacity][scale_row_bytes]
  size_t weights = 0;       ///< float [capacity]: router weight of the row
  size_t homes = 0;         ///< RowHome [capacity]
  size_t slots = 0;         ///< [max_tokens][topk][slot_row_bytes rounded up to 64]
  size_t done = 0;          ///< uint32 [max_tokens]
  size_t total = 0;         ///< bytes, a multiple of the page size

  size_t code_stride() const { return lines(input.code_row_bytes); }
  size_t slot_stride() const { return lines(input.slot_row_bytes); }
  /// Blocks of all local experts together never exceed this.
  int64_t max_blocks() const { return input.capacity / input.block_rows + input.experts_per_rank; }
  size_t record(uint64_t call, int64_t source) const {
    return records +
           ((call & 1) * static_cast<size_t>(input.ranks) + static_cast<size_t>(source)) * record_bytes;
  }

  /// Exact in 64 bits; overflow is an error with the sizes that caused it.
  static Result<SymmLayout> make(const LayoutInput& input);

 private:
  static size_t lines(int64_t bytes) { return base::round_up(static_cast<size_t>(bytes), base::kCacheLine); }
};

}  // namespace megamoe::comm
