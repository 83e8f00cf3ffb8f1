// What stands behind a Group handle: the way its ranks meet to create a buffer.
#pragma once

#include <cstddef>
#include <memory>

#include "comm/deadline.h"
#include "comm/settings.h"
#include "comm/transport.h"
#include "megamoe/status.h"

namespace megamoe::comm {

class GroupState {
 public:
  GroupState(const char* name, int size) : name_(name), size_(size) {}
  virtual ~GroupState() = default;
  const char* name() const { return name_; }
  int size() const { return size_; }

  /// Collective: the n-th call of each rank meets the n-th call of the others. All compare what they say of
  /// themselves, reserve and map the segments of all ranks, zeroed. Either every rank that came gets its
  /// transport or every one gets an error.
  virtual Result<std::unique_ptr<Transport>> meet(const Hello& hello, size_t segment_bytes,
                                                  const Deadline& deadline) = 0;

 private:
  const char* name_;
  int size_;
};

}  // namespace megamoe::comm
