// Names, texts and message bodies that both sides of the rendezvous share.
#include "comm/rendezvous.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace megamoe::comm {

std::string rendezvous_name(const Rendezvous& own) {
  return "megamoe." + std::to_string(geteuid()) + "." + std::to_string(own.sequence) + "." + own.key;
}

std::string notice_name(const Rendezvous& own) {
  return "megamoe." + std::to_string(geteuid()) + ".at." + own.key;
}

std::string group_text(const Rendezvous& own) {
  return "shm group \"" + own.key + "\"";
}

Status left_behind(const Rendezvous& own, uint64_t missed, int late, int ahead, uint64_t current) {
  return Status(Code::kPeerFailed,
                "creation " + std::to_string(missed + 1) + " of " + group_text(own) + " ended on rank " +
                    std::to_string(ahead) + ", now at its creation " + std::to_string(current + 1) +
                    ", before rank " + std::to_string(late) +
                    " began it: expected another try of the late ranks or new handles on all ranks");
}

Result<Fd> open_own_process() {
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!process.valid()) {
    const bool refused = errno == ENOSYS || errno == EPERM;  // EPERM: by the filter of a sandbox
    return Status(refused ? Code::kUnsupported : Code::kSystem,
                  std::string("pidfd_open: ") + std::strerror(errno) +
                      ", expected Linux 5.3 or later and a sandbox that allows it");
  }
  return process;
}

Writer say(Say kind) {
  Writer writer;
  writer.number(kRendezvousMagic).number(static_cast<uint64_t>(kind));
  return writer;
}

std::string say_status(Say kind, const Status& status) {
  Writer writer = say(kind);
  write_status(status, writer);
  return writer.body();
}

void write_status(const Status& status, Writer& writer) {
  writer.number(static_cast<uint64_t>(status.code())).text(status.message());
}

Status read_status(Reader& reader) {
  const auto code = static_cast<Code>(reader.number());
  std::string text = reader.text();
  if (!reader.ok()) return Status(Code::kSystem, "malformed message in the rendezvous");
  return code == Code::kOk ? Status::ok() : Status(code, std::move(text));
}

}  // namespace megamoe::comm
