// SOCK_SEQPACKET sockets in the abstract namespace.
#include "comm/message_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace megamoe::comm {
namespace {

Status system_error(const std::string& what) {
  return Status(Code::kSystem, what + ": " + std::strerror(errno));
}

socklen_t make_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);  // a leading zero byte: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
}

bool same_user(const Fd& socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

Fd new_socket() {
  return Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Result<Fd> listen_on(const std::string& name, bool& in_use) {
  in_use = false;
  Fd socket = new_socket();
  if (!socket.valid()) return system_error("socket");
  sockaddr_un address;
  const socklen_t bytes = make_address(name, address);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
    in_use = errno == EADDRINUSE;
    return system_error("bind");
  }
  if (listen(socket.get(), SOMAXCONN) != 0) return system_error("listen");
  return socket;
}

void stop_listening(Fd& listener) {
  if (listener.valid()) shutdown(listener.get(), SHUT_RDWR);
  listener.reset();
}

Result<Fd> connect_to(const std::string& name) {
  Fd socket = new_socket();
  if (!socket.valid()) return system_error("socket");
  sockaddr_un address;
  const socklen_t bytes = make_address(name, address);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
    if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return Fd();
    return system_error("connect");
  }
  if (!same_user(socket)) return Status(Code::kSystem, "the group's name is held by another user");
  return socket;
}

Fd accept_client(const Fd& listener) {
  for (;;) {
    Fd client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!client.valid() || same_user(client)) return client;
  }
}

bool send_message(const Fd& socket, std::string_view body, const std::vector<int>& fds,
                  const Deadline& deadline) {
  iovec data{const_cast<char*>(body.data()), body.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  for (;;) {
    if (sendmsg(socket.get(), &header, MSG_NOSIGNAL) >= 0) return true;
    // Too many descriptors in flight clears up when the receivers have read theirs.
    const int error = errno;
    if (error != EINTR && error != EAGAIN && error != ETOOMANYREFS) return false;
    if (deadline.passed()) return false;
    const bool full = error == EAGAIN;
    pollfd ready{socket.get(), static_cast<short>(full ? POLLOUT : 0), 0};
    poll(&ready, 1, deadline.left_ms(full ? 1000 : 5));
  }
}

Received receive_message(const Fd& socket, Message& message) {
  message.body.resize(kMaxMessageBytes);
  message.fds.clear();
  iovec data{message.body.data(), message.body.size()};
  // Room for more descriptors than are allowed, so that a client cannot leave any behind unseen.
  alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))];
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  ssize_t got = -1;
  for (bool ended = false;;) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    got = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
    // A reset is told once, before what the other end sent; then comes the rest.
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    // Linux looks for a message first and for the end after that, so a last message sent in between hides.
    if (got != 0 || ended) break;
    ended = true;
  }
  if (got < 0) return errno == EAGAIN ? Received::kNothing : Received::kEnd;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      message.fds.emplace_back(fd);
    }
  }
  if (got == 0 || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || message.fds.size() > kMaxMessageFds) {
    message.fds.clear();
    return Received::kEnd;
  }
  message.body.resize(static_cast<size_t>(got));
  return Received::kMessage;
}

void await_message(const Fd& socket, const Deadline& deadline) {
  pollfd ready{socket.get(), POLLIN, 0};
  poll(&ready, 1, deadline.left_ms(1000));
}

Writer& Writer::number(uint64_t value) {
  body_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

Writer& Writer::text(std::string_view value) {
  number(value.size());
  body_.append(value);
  return *this;
}

uint64_t Reader::number() {
  uint64_t value = 0;
  if (rest_.size() < sizeof(value)) {
    ok_ = false;
    return 0;
  }
  std::memcpy(&value, rest_.data(), sizeof(value));
  rest_.remove_prefix(sizeof(value));
  return value;
}

std::string Reader::text() {
  const uint64_t bytes = number();
  if (bytes > rest_.size()) {
    ok_ = false;
    return {};
  }
  std::string value(rest_.substr(0, bytes));
  rest_.remove_prefix(bytes);
  return value;
}

}  // namespace megamoe::comm
