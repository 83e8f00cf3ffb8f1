// Small messages with file descriptors between processes of one user, over sockets without a name in the file
// system.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/deadline.h"
#include "comm/fd.h"
#include "megamoe/status.h"

namespace megamoe::comm {

inline constexpr size_t kMaxMessageBytes = 65536;
inline constexpr size_t kMaxMessageFds = 2;

struct Message {
  std::string body;
  std::vector<Fd> fds;
};

enum class Received { kMessage, kNothing, kEnd };

/// Listens on an abstract name. kSystem with "in use" when another socket holds it: `in_use` is set then.
Result<Fd> listen_on(const std::string& name, bool& in_use);
/// Closes a listener for good, also where a child that was forked meanwhile still holds it.
void stop_listening(Fd& listener);
/// Connects; an invalid Fd when nobody listens or the listener is busy; an error when another user listens.
Result<Fd> connect_to(const std::string& name);
/// The next waiting client of this user; an invalid Fd when there is none (clients of other users are
/// dropped).
Fd accept_client(const Fd& listener);

/// Waits for room until the deadline. False when the other end is gone or the deadline has passed.
bool send_message(const Fd& socket, std::string_view body, const std::vector<int>& fds,
                  const Deadline& deadline);
/// Never waits. Messages over the limits count as the end.
Received receive_message(const Fd& socket, Message& message);
/// Sleeps until the socket has something or the deadline passes.
void await_message(const Fd& socket, const Deadline& deadline);

/// Writes numbers and texts into a message body.
class Writer {
 public:
  Writer& number(uint64_t value);
  Writer& text(std::string_view value);
  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

/// Reads them back; every read of a malformed body gives zero or empty and clears ok().
class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}
  uint64_t number();
  std::string text();
  bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace megamoe::comm
