// Rows of the transport table.
#include "comm/transport_table.h"

#include "comm/limits.h"

namespace megamoe::comm {
namespace {

constexpr TransportRow kTable[] = {
    {"self", true, 1,
     [](const std::string&, int, int) -> Result<std::vector<Group>> {
       return std::vector<Group>{Group::self()};
     }},
    {"local", true, kMaxRanks, [](const std::string&, int, int size) { return Group::local(size); }},
    {"shm", false, kMaxRanks,
     [](const std::string& key, int rank, int size) -> Result<std::vector<Group>> {
       Result<Group> group = Group::shm(key, rank, size);
       if (!group.is_ok()) return group.status();
       return std::vector<Group>{*group};
     }},
};

}  // namespace

std::span<const TransportRow> transport_table() {
  return kTable;
}

}  // namespace megamoe::comm
