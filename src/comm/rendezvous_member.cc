// The side of ranks 1 and up.
#include <thread>

#include "comm/rendezvous.h"
#include "comm/segment_header.h"
#include "comm/session.h"

namespace megamoe::comm {
namespace {

class Member {
 public:
  Member(const Rendezvous& own, const Deadline& deadline) : own_(own), deadline_(deadline) {}

  Result<SharedParts> run() {
    Result<Fd> process = open_own_process();
    if (!process.is_ok()) return process.status();
    MEGAMOE_RETURN_IF_ERROR(introduce(*process));
    Message message;
    MEGAMOE_RETURN_IF_ERROR(expect(Say::kGo, message));
    MEGAMOE_RETURN_IF_ERROR(give_memory());
    SharedParts parts;
    Status mapped;
    for (int r = 0; r < own_.hello.size; ++r) {
      MEGAMOE_RETURN_IF_ERROR(expect(Say::kPeer, message));
      if (message.fds.size() != 2)
        return Status(Code::kSystem, "rendezvous: a rank without memory or process");
      Result<Mapping> mapping = Mapping::map(message.fds[0], own_.segment_bytes);
      if (!mapping.is_ok() && mapped.is_ok()) mapped = mapping.status();
      parts.segments.push_back(mapping.is_ok() ? std::move(*mapping) : Mapping());
      parts.processes.push_back(std::move(message.fds[1]));
    }
    send_message(host_, say_status(Say::kMapped, mapped), {}, deadline_);
    const Status status = expect(Say::kReady, message);
    if (status.is_ok()) return parts;
    // The others may have gone on: they must find this rank failed.
    if (mapped.is_ok()) {
      write_failure(*reinterpret_cast<SegmentHeader*>(parts.segments[own_.hello.rank].data()),
                    static_cast<int32_t>(status.code()), own_.hello.rank,
                    static_cast<uint32_t>(Stage::kCreate), status.message());
    }
    return status;
  }

 private:
  /// Connects and says hello until the host takes it: a listener that closes without a word belonged to a
  /// rendezvous that is over, or to one that this rank is not behind.
  Status introduce(const Fd& process) {
    Writer hello = say(Say::kHello);
    hello.number(static_cast<uint64_t>(own_.hello.rank)).number(static_cast<uint64_t>(own_.hello.size));
    hello.number(own_.sequence).number(own_.ended);
    hello.number(own_.hello.settings.size());
    for (const auto& [field, value] : own_.hello.settings) hello.text(field).text(value);
    write_status(own_.hello.refusal, hello);
    if (hello.body().size() > kMaxMessageBytes) {
      return Status(Code::kInvalidArgument, "settings = " + std::to_string(hello.body().size()) +
                                                " bytes: expected at most " +
                                                std::to_string(kMaxMessageBytes));
    }
    while (!deadline_.passed()) {
      Result<Fd> host = connect_to(rendezvous_name(own_));
      if (host.is_ok() && !host->valid()) host = connect_to(notice_name(own_));
      if (!host.is_ok()) return host.status();
      if (host->valid()) {
        host_ = std::move(*host);
        if (send_message(host_, hello.body(), {process.get()}, deadline_)) {
          Message message;
          const Received received = receive(message);
          if (received == Received::kMessage) return take_progress(message);
          if (received == Received::kNothing) break;
        }
        host_.reset();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(deadline_.left_ms(2)));
    }
    return give_up("rank 0");
  }

  /// The first answer: progress, or already the end.
  Status take_progress(const Message& message) {
    Reader reader(message.body);
    reader.number();
    const auto kind = static_cast<Say>(reader.number());
    if (kind == Say::kFail) return read_status(reader);
    if (kind == Say::kProgress) missing_ = reader.text();
    return Status::ok();
  }

  Status give_memory() {
    Result<Fd> memory = create_shared_memory(own_.segment_bytes);
    const std::string body = say_status(Say::kMemory, memory.status());
    send_message(host_, body, memory.is_ok() ? std::vector<int>{memory->get()} : std::vector<int>{},
                 deadline_);
    missing_ = "rank 0 or a rank that reserves its memory";
    return Status::ok();  // an error comes back from the host, the same for all
  }

  /// Waits for a message of a kind; takes in progress on the way.
  Status expect(Say wanted, Message& message) {
    for (;;) {
      switch (receive(message)) {
        case Received::kNothing:
          return give_up(missing_);
        case Received::kEnd:
          return Status(Code::kPeerFailed,
                        "rank 0 of " + group_text(own_) + " ended while the buffer was created");
        case Received::kMessage:
          break;
      }
      Reader reader(message.body);
      const bool ours = reader.number() == kRendezvousMagic;
      const auto kind = static_cast<Say>(reader.number());
      if (ours && kind == wanted) return Status::ok();
      if (ours && kind == Say::kFail) return read_status(reader);
      if (!ours || kind != Say::kProgress) return Status(Code::kSystem, "rendezvous: unexpected message");
      missing_ = reader.text();
    }
  }

  /// kNothing at the deadline.
  Received receive(Message& message) {
    for (;;) {
      const Received received = receive_message(host_, message);
      if (received != Received::kNothing || deadline_.passed()) return received;
      await_message(host_, deadline_);
    }
  }

  /// Ends at the deadline; the others hear the same text.
  Status give_up(const std::string& missing) {
    const Status status(deadline_.code(), missing + " of " + group_text(own_) +
                                              " did not come to create the buffer " +
                                              deadline_.text(own_.hello.rank));
    if (host_.valid()) send_message(host_, say_status(Say::kFail, status), {}, deadline_);
    return status;
  }

  const Rendezvous& own_;
  const Deadline& deadline_;
  Fd host_;
  std::string missing_ = "rank 0";
};

}  // namespace

Result<SharedParts> join_rendezvous(const Rendezvous& own, const Deadline& deadline) {
  return Member(own, deadline).run();
}

}  // namespace megamoe::comm
