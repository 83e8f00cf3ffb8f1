// Block sizes of a planned layer: how much is decoded, claimed, sent and summed at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/topology.h"

namespace megamoe::moe {

/// Rows counted by one arrival counter. Enough rows to keep the arithmetic units busy while a panel streams
/// in, few enough that a block's activations stay in the second-level cache. Part of the memory that all
/// ranks share, so the same everywhere.
inline constexpr int64_t kBlockRows = 128;

struct Blocking {
#define MEGAMOE_BLOCK_SIZE(name, fallback, least, most, multiple, candidates, what) int64_t name = 0;
#include "moe/blocking.inc"
#undef MEGAMOE_BLOCK_SIZE
  bool operator==(const Blocking&) const = default;
};

/// What a block size may be.
struct BlockSize {
  const char* name;
  int64_t Blocking::*value;
  int64_t least, most, multiple;
  std::vector<int64_t> candidates;  ///< beside the default, worth measuring
  const char* what;

  bool allows(int64_t size) const { return size >= least && size <= most && size % multiple == 0; }
  std::string allowed() const;  ///< "a multiple of 4096 in [4096, 65536]"
};

/// The table.
std::span<const BlockSize> block_sizes();
/// The row of a name, or null.
const BlockSize* find_block_size(const std::string& name);
/// The sizes for a machine without a measurement.
Blocking default_blocking(const base::Topology& caches);
/// "strip_bytes 16384, piece_ns 20000, ..."
std::string blocking_text(const Blocking& blocking);

}  // namespace megamoe::moe
