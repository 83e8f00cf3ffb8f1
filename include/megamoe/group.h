// Who takes part: the ranks of an expert-parallel group and the transport between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megamoe/export.h"
#include "megamoe/status.h"

namespace megamoe {

namespace comm {
class GroupState;
}

/// A handle of one rank on its group. Cheap to copy. Creating a buffer on a group is collective over its
/// ranks.
class MEGAMOE_API Group {
 public:
  /// A group of one rank.
  static Group self();
  /// `size` ranks in this process; every handle is to be used from its own thread.
  static Result<std::vector<Group>> local(int size);
  /// `size` processes of this host. `key` names the group: all its processes give the same key, and no other
  /// group of the same user does at the same time. Processes meet when they create a buffer.
  static Result<Group> shm(const std::string& key, int rank, int size);

  int rank() const;
  int size() const;
  /// Name of the transport: "self", "local" or "shm".
  const char* transport() const;

  const std::shared_ptr<comm::GroupState>& state() const { return state_; }

 private:
  Group(std::shared_ptr<comm::GroupState> state, int rank) : state_(std::move(state)), rank_(rank) {}
  std::shared_ptr<comm::GroupState> state_;
  int rank_ = 0;
};

}  // namespace megamoe
