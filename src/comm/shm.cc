// Group and transport of processes that share memory.
#include "comm/shm.h"

#include <poll.h>

#include <mutex>
#include <set>

#include "comm/mapped_transport.h"
#include "comm/rendezvous.h"

namespace megamoe::comm {
namespace {

class ShmTransport : public MappedTransport {
 public:
  explicit ShmTransport(SharedParts parts) : parts_(std::move(parts)) {
    for (const Mapping& mapping : parts_.segments) segments_.push_back(mapping.data());
  }
  const char* name() const override { return "shm"; }
  bool gone(int rank) override {
    pollfd process{parts_.processes[rank].get(), POLLIN, 0};
    return poll(&process, 1, 0) == 1 && (process.revents & POLLIN) != 0;
  }

 private:
  SharedParts parts_;
};

class ShmGroup : public GroupState {
 public:
  ShmGroup(const std::string& key, int size) : GroupState("shm", size), key_(key) {}

  Result<std::unique_ptr<Transport>> meet(const Hello& hello, size_t segment_bytes,
                                          const Deadline& deadline) override {
    const Rendezvous own = begin(hello, segment_bytes);
    Result<SharedParts> parts =
        hello.rank == 0 ? host_rendezvous(own, deadline) : join_rendezvous(own, deadline);
    end(own);
    if (!parts.is_ok()) return parts.status();
    return std::unique_ptr<Transport>(new ShmTransport(std::move(*parts)));
  }

 private:
  Rendezvous begin(const Hello& hello, size_t segment_bytes) {
    std::lock_guard lock(mutex_);
    running_.insert(creations_);
    return {key_, creations_++, *running_.begin(), hello, segment_bytes};
  }
  void end(const Rendezvous& creation) {
    std::lock_guard lock(mutex_);
    running_.erase(creation.sequence);
  }

  const std::string key_;
  std::mutex mutex_;
  uint64_t creations_ = 0;
  std::set<uint64_t> running_;  ///< of them, by number
};

}  // namespace

std::shared_ptr<GroupState> make_shm_group(const std::string& key, int size) {
  return std::make_shared<ShmGroup>(key, size);
}

}  // namespace megamoe::comm
