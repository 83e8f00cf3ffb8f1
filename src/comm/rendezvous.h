// How the processes of a shm group meet: rank 0 listens on a name made of user, key and creation number; the
// others connect. Hello with settings from all -> one verdict for all -> memory from all -> everyone's memory
// and process descriptors to all -> mapped by all -> ready. Any failure in between is the same error for
// everyone there. Rank 0 listens on a second name without the number too: a rank that is at another creation
// finds it there, and the one of both that is behind is told at once that its creation can meet nobody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/deadline.h"
#include "comm/message_socket.h"
#include "comm/settings.h"
#include "comm/shared_segment.h"
#include "megamoe/status.h"

namespace megamoe::comm {

/// What a rank brings.
struct Rendezvous {
  std::string key;
  uint64_t sequence = 0;  ///< creations by this handle before this one
  uint64_t ended = 0;     ///< of these, how many had ended with all before them when this one began
  Hello hello;
  size_t segment_bytes = 0;
};

/// What every rank holds afterwards, by rank.
struct SharedParts {
  std::vector<Mapping> segments;
  std::vector<Fd> processes;  ///< pidfds
};

Result<SharedParts> host_rendezvous(const Rendezvous& own, const Deadline& deadline);  ///< rank 0
Result<SharedParts> join_rendezvous(const Rendezvous& own, const Deadline& deadline);  ///< the others

/// First word of every message: the format of the messages themselves.
inline constexpr uint64_t kRendezvousMagic = 0x33304d4d454f4d4dull;

enum class Say : uint64_t {
  kHello = 1,  ///< member: rank, size, creation, ended ones, settings, code and text of its refusal; pidfd
  kProgress,   ///< host: which ranks are still missing; the sign that a hello was taken
  kFail,       ///< either: code and text; ends the rendezvous
  kGo,         ///< host: settings agree, reserve memory
  kMemory,     ///< member: code and text; memory descriptor when ok
  kPeer,       ///< host: a rank; its memory and pidfd
  kMapped,     ///< member: code and text
  kReady,      ///< host: all have mapped
};

/// Abstract socket name of one creation.
std::string rendezvous_name(const Rendezvous& own);
/// Abstract socket name at which rank 0 answers ranks that are at another creation.
std::string notice_name(const Rendezvous& own);
/// "shm group "key"".
std::string group_text(const Rendezvous& own);
/// Of a creation that rank `ahead`, now at `current`, left before rank `late` began it. Numbers count from 0.
Status left_behind(const Rendezvous& own, uint64_t missed, int late, int ahead, uint64_t current);
/// pidfd of this process.
Result<Fd> open_own_process();
Writer say(Say kind);
/// A message of a kind with a status.
std::string say_status(Say kind, const Status& status);
void write_status(const Status& status, Writer& writer);
Status read_status(Reader& reader);

}  // namespace megamoe::comm
