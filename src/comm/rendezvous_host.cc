// The side of rank 0: collects, decides, distributes.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>

#include "comm/host_memory.h"
#include "comm/limits.h"
#include "comm/rendezvous.h"

namespace megamoe::comm {
namespace {

/// A connection; rank 0 itself is one without a socket.
struct Member {
  Fd socket;
  bool known = false;  ///< has said a proper hello
  Hello hello;
  Fd process;
  Fd memory;
  bool gave_memory = false;
  bool mapped = false;
  Status status;  ///< of its memory, then of its mapping
};

class Host {
 public:
  Host(const Rendezvous& own, const Deadline& deadline) : own_(own), deadline_(deadline) {}

  Result<SharedParts> run() {
    SharedParts parts;
    const Status status = meet(parts);
    // Closed before the last word goes out: nobody who has heard it can meet this listener again.
    stop_listening(listener_);
    stop_listening(notices_);
    broadcast(status.is_ok() ? say(Say::kReady).body() : say_status(Say::kFail, status));
    if (!status.is_ok()) return status;
    return parts;
  }

 private:
  Status meet(SharedParts& parts) {
    Result<Fd> process = open_own_process();
    if (!process.is_ok()) return process.status();
    Member& self = members_.emplace_back();
    self.known = true;
    self.hello = own_.hello;
    self.process = std::move(*process);
    MEGAMOE_RETURN_IF_ERROR(listen());

    MEGAMOE_RETURN_IF_ERROR(pump("come", [](const Member& m) { return m.known; }));
    MEGAMOE_RETURN_IF_ERROR(agree_all());
    MEGAMOE_RETURN_IF_ERROR(check_host_memory(own_.segment_bytes, own_.hello.size));
    taking_hellos_ = false;
    stop_listening(notices_);
    members_.remove_if([](const Member& m) { return !m.known; });
    members_.sort([](const Member& a, const Member& b) { return a.hello.rank < b.hello.rank; });

    broadcast(say(Say::kGo).body());
    Result<Fd> memory = create_shared_memory(own_.segment_bytes);
    Member& first = members_.front();
    first.gave_memory = true;
    first.status = memory.status();
    if (memory.is_ok()) first.memory = std::move(*memory);
    MEGAMOE_RETURN_IF_ERROR(pump("reserve its memory", [](const Member& m) { return m.gave_memory; }));
    MEGAMOE_RETURN_IF_ERROR(first_bad());

    for (const Member& member : members_) {
      Writer peer = say(Say::kPeer);
      peer.number(static_cast<uint64_t>(member.hello.rank));
      broadcast(peer.body(), {member.memory.get(), member.process.get()});
    }
    first.mapped = true;
    for (Member& member : members_) {
      Result<Mapping> mapping = Mapping::map(member.memory, own_.segment_bytes);
      if (!mapping.is_ok() && first.status.is_ok()) first.status = mapping.status();
      parts.segments.push_back(mapping.is_ok() ? std::move(*mapping) : Mapping());
      member.memory.reset();
    }
    MEGAMOE_RETURN_IF_ERROR(pump("map the memory", [](const Member& m) { return m.mapped; }));
    MEGAMOE_RETURN_IF_ERROR(first_bad());
    for (Member& member : members_) parts.processes.push_back(std::move(member.process));
    return Status::ok();
  }

  Status listen() {
    bool in_use = false;
    for (;;) {
      Result<Fd> listener = listen_on(rendezvous_name(own_), in_use);
      if (listener.is_ok()) {
        listener_ = std::move(*listener);
        return Status::ok();
      }
      if (!in_use) return listener.status();
      if (deadline_.passed()) {
        return Status(deadline_.code(),
                      "key = \"" + own_.key +
                          "\" was in use by another group of this user: expected a free key " +
                          deadline_.text(0));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.left_ms(5)));
    }
  }

  /// While another creation of this rank has the name, ranks that are behind learn it at their deadline.
  void listen_for_notices() {
    if (notices_.valid()) return;
    bool in_use = false;
    Result<Fd> listener = listen_on(notice_name(own_), in_use);
    if (listener.is_ok()) notices_ = std::move(*listener);
  }

  /// Members expected: the largest size that anyone believes in, so that a wrong size reaches all of them
  /// too.
  int expected() const {
    int most = own_.hello.size;
    for (const Member& member : members_) {
      if (member.known) most = std::max(most, member.hello.size);
    }
    return std::min(most, kMaxRanks);
  }

  Status agree_all() const {
    std::vector<const Hello*> hellos;
    for (const Member& member : members_) {
      if (member.known) hellos.push_back(&member.hello);
    }
    return agree(hellos);
  }

  /// Takes in messages until as many members as expected are `done`.
  template <class Done>
  Status pump(const char* what, Done done) {
    std::vector<pollfd> polls;
    for (;;) {
      if (!failure_.is_ok()) return failure_;
      if (std::count_if(members_.begin(), members_.end(), done) >= expected()) return Status::ok();
      if (deadline_.passed()) {
        MEGAMOE_RETURN_IF_ERROR(agree_all());
        return Status(deadline_.code(), missing(done) + " of " + group_text(own_) + " did not " + what +
                                            " to create the buffer " + deadline_.text(0));
      }
      polls.clear();
      if (taking_hellos_) {
        listen_for_notices();
        polls.push_back(pollfd{listener_.get(), POLLIN, 0});
        if (notices_.valid()) polls.push_back(pollfd{notices_.get(), POLLIN, 0});
      }
      for (const Member& member : members_) {
        if (member.socket.valid()) polls.push_back(pollfd{member.socket.get(), POLLIN, 0});
      }
      poll(polls.data(), polls.size(), deadline_.left_ms(1000));
      if (taking_hellos_) {
        accept(listener_);
        if (notices_.valid()) accept(notices_);
      }
      for (Member& member : members_) {
        if (member.socket.valid()) take_messages(member);
      }
      members_.remove_if([](const Member& m) { return !m.known && !m.socket.valid(); });
    }
  }

  template <class Done>
  std::string missing(Done done) const {
    std::vector<bool> here(own_.hello.size);
    for (const Member& member : members_) {
      if (done(member) && member.hello.rank < own_.hello.size) here[member.hello.rank] = true;
    }
    std::vector<int> ranks;
    for (int r = 0; r < own_.hello.size; ++r) {
      if (!here[r]) ranks.push_back(r);
    }
    return rank_list(ranks);
  }

  void accept(const Fd& listener) {
    for (;;) {
      Fd client = accept_client(listener);
      if (!client.valid()) {
        if (errno == EMFILE || errno == ENFILE) {
          failure_ = Status(Code::kSystem, std::string("rank 0: accept: ") + std::strerror(errno));
        }
        return;
      }
      // Strangers may hold connections open without a word; they must not exhaust the descriptors.
      const auto strangers =
          std::count_if(members_.begin(), members_.end(), [](const Member& m) { return !m.known; });
      if (strangers < kMaxRanks) members_.emplace_back().socket = std::move(client);
    }
  }

  void take_messages(Member& member) {
    Message message;
    while (failure_.is_ok() && member.socket.valid()) {
      switch (receive_message(member.socket, message)) {
        case Received::kNothing:
          return;
        case Received::kEnd:
          member.socket.reset();
          if (member.known) {
            failure_ =
                Status(Code::kPeerFailed, "rank " + std::to_string(member.hello.rank) + " of " +
                                              group_text(own_) + " ended while the buffer was created");
          }
          return;
        case Received::kMessage:
          if (!take(member, message)) member.socket.reset();
      }
    }
  }

  /// False for a message that no member sends.
  bool take(Member& member, Message& message) {
    Reader reader(message.body);
    if (reader.number() != kRendezvousMagic) return false;
    const auto kind = static_cast<Say>(reader.number());
    if (!member.known) return kind == Say::kHello && take_hello(member, reader, message);
    if (kind == Say::kFail) {
      failure_ = read_status(reader);
    } else if (kind == Say::kMemory) {
      member.status = read_status(reader);
      member.gave_memory = true;
      if (!message.fds.empty()) member.memory = std::move(message.fds[0]);
      if (member.status.is_ok() && !member.memory.valid()) {
        member.status = Status(Code::kSystem, "no memory descriptor arrived");
      }
    } else if (kind == Say::kMapped) {
      member.status = read_status(reader);
      member.mapped = true;
    }
    return true;
  }

  bool take_hello(Member& member, Reader& reader, Message& message) {
    const uint64_t rank = reader.number();
    const uint64_t size = reader.number();
    const uint64_t sequence = reader.number();
    const uint64_t ended = reader.number();
    const uint64_t fields = reader.number();
    if (!reader.ok() || rank > kMaxRanks || size > kMaxRanks || message.fds.size() != 1) return false;
    Hello hello{static_cast<int>(rank), static_cast<int>(size), {}, {}};
    for (uint64_t i = 0; i < fields && reader.ok(); ++i) {
      std::string field = reader.text();
      hello.settings.emplace_back(std::move(field), reader.text());
    }
    hello.refusal = read_status(reader);
    if (!reader.ok()) return false;
    if (sequence != own_.sequence) {
      answer_other_creation(member, hello.rank, sequence, ended);
      return false;
    }
    member.hello = std::move(hello);
    member.process = std::move(message.fds[0]);
    member.known = true;
    broadcast(say(Say::kProgress).text(missing([](const Member& m) { return m.known; })).body());
    return true;
  }

  /// Of a rank at another creation. Threads may run several at once: only those below `ended` are over.
  void answer_other_creation(const Member& member, int rank, uint64_t sequence, uint64_t ended) {
    if (sequence < own_.ended) {
      send_message(member.socket, say_status(Say::kFail, left_behind(own_, sequence, rank, 0, own_.sequence)),
                   {}, deadline_);
    } else if (own_.sequence < ended) {
      // A rank that has been here gave this creation up: why follows on its first connection.
      const bool was_here = std::any_of(members_.begin(), members_.end(),
                                        [&](const Member& m) { return m.known && m.hello.rank == rank; });
      if (!was_here) failure_ = left_behind(own_, own_.sequence, 0, rank, sequence);
    }
  }

  /// Sends to every known member; one that is gone shows itself as an end of its connection.
  void broadcast(const std::string& body, const std::vector<int>& fds = {}) {
    for (const Member& member : members_) {
      if (member.known && member.socket.valid()) send_message(member.socket, body, fds, deadline_);
    }
  }

  Status first_bad() const {
    for (const Member& member : members_) {
      if (!member.status.is_ok()) {
        return Status(member.status.code(),
                      "rank " + std::to_string(member.hello.rank) + ": " + member.status.message());
      }
    }
    return Status::ok();
  }

  const Rendezvous& own_;
  const Deadline& deadline_;
  Fd listener_;
  Fd notices_;
  std::list<Member> members_;
  bool taking_hellos_ = true;
  Status failure_;
};

}  // namespace

Result<SharedParts> host_rendezvous(const Rendezvous& own, const Deadline& deadline) {
  return Host(own, deadline).run();
}

}  // namespace megamoe::comm
