// Threads and forks behind run_ranks.
#include "comm/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

namespace megamoe::test {

std::string fresh_key() {
  static std::atomic<int> count{0};
  return "test." + std::to_string(getpid()) + "." + std::to_string(count++);
}

Child::Child(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    const std::string text = body();
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t wrote = write(ends[1], text.data() + done, text.size() - done);
      if (wrote <= 0) _exit(99);
      done += static_cast<size_t>(wrote);
    }
    _exit(0);
  }
  ::close(ends[1]);
  pipe_ = ends[0];
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}

Child::~Child() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pipe_ >= 0) ::close(pipe_);
}

Outcome Child::finish(int limit_s) {
  Outcome outcome;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(limit_s);
  int status = 0;
  bool over = false;
  fcntl(pipe_, F_SETFL, O_NONBLOCK);
  const auto drain = [&] {
    char buffer[4096];
    ssize_t got;
    while ((got = read(pipe_, buffer, sizeof(buffer))) > 0) {
      outcome.text.append(buffer, static_cast<size_t>(got));
    }
  };
  while (waitpid(pid_, &status, WNOHANG) != pid_) {
    drain();
    if (!over && std::chrono::steady_clock::now() > end) {
      over = true;
      kill(pid_, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  drain();
  pid_ = -1;
  if (over) outcome.text = "the test's own time limit passed; " + outcome.text;
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    outcome.text += " exit code " + std::to_string(WEXITSTATUS(status));
  }
  return outcome;
}

std::vector<Outcome> run_ranks(const comm::TransportRow& row, int size, const Body& body) {
  std::vector<Outcome> outcomes(size);
  const std::string key = fresh_key();
  if (row.one_process) {
    Result<std::vector<Group>> groups = row.join(key, 0, size);
    if (!groups.is_ok()) {
      for (Outcome& outcome : outcomes) outcome.text = groups.status().message();
      return outcomes;
    }
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) threads.emplace_back([&, r] { outcomes[r].text = body((*groups)[r]); });
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }
  std::vector<Child> children;
  for (int r = 0; r < size; ++r) {
    children.emplace_back([&, r] {
      Result<std::vector<Group>> groups = row.join(key, r, size);
      return groups.is_ok() ? body((*groups)[0]) : groups.status().message();
    });
  }
  for (int r = 0; r < size; ++r) outcomes[r] = children[r].finish();
  return outcomes;
}

std::vector<Outcome> run_shm(int size, const Body& body) {
  return run_ranks(transport("shm"), size, body);
}

const comm::TransportRow& transport(const std::string& name) {
  for (const comm::TransportRow& row : comm::transport_table()) {
    if (name == row.name) return row;
  }
  std::abort();
}

int open_fds() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

int mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:megamoe") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace megamoe::test
