// The public handle of a group: checks the arguments and picks the transport.
#include "megamoe/group.h"

#include "base/quoted.h"
#include "comm/group_state.h"
#include "comm/limits.h"
#include "comm/local.h"
#include "comm/shm.h"

namespace megamoe {
namespace {

Status check_size(int size) {
  if (size >= 1 && size <= comm::kMaxRanks) return Status::ok();
  return Status(Code::kInvalidArgument, "size = " + std::to_string(size) + ": expected a value in [1, " +
                                            std::to_string(comm::kMaxRanks) + "]");
}

}  // namespace

Group Group::self() {
  return Group(comm::make_local_group("self", 1), 0);
}

Result<std::vector<Group>> Group::local(int size) {
  MEGAMOE_RETURN_IF_ERROR(check_size(size));
  const std::shared_ptr<comm::GroupState> state = comm::make_local_group("local", size);
  std::vector<Group> groups;
  for (int rank = 0; rank < size; ++rank) groups.push_back(Group(state, rank));
  return groups;
}

Result<Group> Group::shm(const std::string& key, int rank, int size) {
  if (key.empty() || key.size() > comm::kMaxKeyBytes) {
    return Status(Code::kInvalidArgument, "key = " + base::quoted(key) + " of " + std::to_string(key.size()) +
                                              " bytes: expected 1 to " + std::to_string(comm::kMaxKeyBytes));
  }
  MEGAMOE_RETURN_IF_ERROR(check_size(size));
  // A rank outside the group is refused by all ranks together only where it can reach them; here it is plain.
  if (rank < 0 || rank >= size) {
    return Status(Code::kInvalidArgument, "rank = " + std::to_string(rank) + ": expected a value in [0, " +
                                              std::to_string(size) + ")");
  }
  return Group(comm::make_shm_group(key, size), rank);
}

int Group::rank() const {
  return rank_;
}

int Group::size() const {
  return state_->size();
}

const char* Group::transport() const {
  return state_->name();
}

}  // namespace megamoe
