// How bytes reach another rank's segment. One implementation per transport, one row each in the transport
// table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "megamoe/status.h"

namespace megamoe::comm {

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  /// Address of a rank's segment in this process, or null when rows must travel by put() and add().
  virtual std::byte* segment(int rank) const = 0;
  /// Copies bytes into `rank`'s segment. A later add() from the same thread to the same rank arrives after
  /// them.
  virtual void put(int rank, size_t offset, const void* source, size_t bytes) = 0;
  /// Adds to a uint32 counter in `rank`'s segment, release order.
  virtual void add(int rank, size_t offset, uint32_t n) = 0;
  /// Wakes the threads of `rank` that sleep on the futex word at `offset` of its segment.
  virtual void wake(int rank, size_t offset) = 0;
  /// True once the process (or thread group) behind a rank is known to be gone. Slow path only.
  virtual bool gone(int rank) = 0;
};

}  // namespace megamoe::comm
