// Runs one function on every rank of a group, for any transport: threads of this process or forked processes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/transport_table.h"

namespace megamoe::test {

/// How a rank ended. `text` is what the body returned.
struct Outcome {
  std::string text;
  int signal = 0;  ///< that ended its process
};

using Body = std::function<std::string(const Group&)>;

/// A key that no other test uses.
std::string fresh_key();

/// A forked process that runs one function and reports its text.
class Child {
 public:
  explicit Child(const std::function<std::string()>& body);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  pid_t pid() const { return pid_; }
  /// Waits until it ends; after `limit_s` seconds it is killed.
  Outcome finish(int limit_s = 120);

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

/// One outcome per rank.
std::vector<Outcome> run_ranks(const comm::TransportRow& row, int size, const Body& body);
std::vector<Outcome> run_shm(int size, const Body& body);

const comm::TransportRow& transport(const std::string& name);

/// Number of open descriptors, and of shared segments mapped by this process.
int open_fds();
int mapped_segments();

}  // namespace megamoe::test
