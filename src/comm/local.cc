// In-process rendezvous; the segments are private pages that live until the last rank lets go.
#include "comm/local.h"

#include <sys/mman.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "base/memory.h"
#include "comm/host_memory.h"
#include "comm/mapped_transport.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace megamoe::comm {
namespace {

/// One creation: all ranks say hello, then all allocate.
struct Meeting {
  explicit Meeting(int size) : hellos(size), came(size), segments(size) {}
  std::vector<Hello> hellos;
  std::vector<bool> came;
  std::vector<base::Pages> segments;
  int arrived = 0;    ///< ranks that have said hello
  int allocated = 0;  ///< ranks whose segment is there
  int left = 0;       ///< ranks that no longer look at this meeting
  Status failure;
};

class LocalTransport : public MappedTransport {
 public:
  LocalTransport(const char* name, std::shared_ptr<Meeting> meeting)
      : name_(name), meeting_(std::move(meeting)) {
    for (const base::Pages& pages : meeting_->segments) segments_.push_back(pages.data());
  }
  const char* name() const override { return name_; }
  /// A thread cannot vanish without its session being closed by the destructor.
  bool gone(int) override { return false; }

 private:
  const char* name_;
  std::shared_ptr<Meeting> meeting_;
};

class LocalGroup : public GroupState {
 public:
  LocalGroup(const char* name, int size) : GroupState(name, size), creations_(size) {}

  Result<std::unique_ptr<Transport>> meet(const Hello& hello, size_t segment_bytes,
                                          const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    const uint64_t sequence = creations_[hello.rank]++;
    auto& place = meetings_[sequence];
    if (place == nullptr) place = std::make_shared<Meeting>(size());
    const std::shared_ptr<Meeting> meeting = place;
    const Status status = join(lock, *meeting, hello, segment_bytes, deadline);
    if (++meeting->left == size()) meetings_.erase(sequence);
    if (!status.is_ok()) return status;
    lock.unlock();
    return std::unique_ptr<Transport>(new LocalTransport(name(), meeting));
  }

 private:
  Status join(std::unique_lock<std::mutex>& lock, Meeting& meeting, const Hello& hello, size_t segment_bytes,
              const Deadline& deadline) {
    if (!meeting.failure.is_ok()) return meeting.failure;
    const int rank = hello.rank;
    meeting.hellos[rank] = hello;
    meeting.came[rank] = true;
    if (++meeting.arrived == size()) {
      std::vector<const Hello*> hellos;
      for (const Hello& said : meeting.hellos) hellos.push_back(&said);
      meeting.failure = agree(hellos);
      if (meeting.failure.is_ok()) meeting.failure = check_host_memory(segment_bytes, size());
      changed_.notify_all();
    }
    MEGAMOE_RETURN_IF_ERROR(await(lock, meeting, rank, deadline, [&] { return meeting.arrived == size(); }));

    lock.unlock();
    Result<base::Pages> pages = base::Pages::allocate(segment_bytes, true);
    // Each rank touches its own pages first, so that they lie on the memory node of its thread.
    if (pages.is_ok() && size() > 1) madvise(pages->data(), pages->bytes(), MADV_POPULATE_WRITE);
    lock.lock();

    if (pages.is_ok()) {
      meeting.segments[rank] = std::move(*pages);
      ++meeting.allocated;
    } else if (meeting.failure.is_ok()) {
      meeting.failure =
          Status(pages.status().code(), "rank " + std::to_string(rank) + ": " + pages.status().message());
    }
    changed_.notify_all();
    return await(lock, meeting, rank, deadline, [&] { return meeting.allocated == size(); });
  }

  template <class Done>
  Status await(std::unique_lock<std::mutex>& lock, Meeting& meeting, int rank, const Deadline& deadline,
               Done done) {
    bool over = false;
    while (meeting.failure.is_ok() && !done()) {
      if (!over) {
        changed_.wait_until(lock, deadline.next_look());
        lock.unlock();  // the question may run code of the program
        over = deadline.passed();
        lock.lock();
        continue;
      }
      std::vector<int> missing;
      for (int r = 0; r < size(); ++r) {
        if (!meeting.came[r] || (meeting.arrived == size() && meeting.segments[r].data() == nullptr)) {
          missing.push_back(r);
        }
      }
      meeting.failure =
          Status(deadline.code(), rank_list(missing) + " of the local group did not come to create the " +
                                      "buffer " + deadline.text(rank));
      changed_.notify_all();
    }
    return meeting.failure;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> creations_;                        ///< of each rank
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings_;  ///< by creation number
};

}  // namespace

std::shared_ptr<GroupState> make_local_group(const char* name, int size) {
  return std::make_shared<LocalGroup>(name, size);
}

}  // namespace megamoe::comm
