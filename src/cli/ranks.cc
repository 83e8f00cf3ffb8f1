// Ranks of one run: threads of this process, or processes forked from it; and the memory they report through.
#include "cli/ranks.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

namespace megamoe::cli {
namespace {

using Body = std::function<Status(const Group&)>;
using Tick = std::function<void()>;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kPoll = std::chrono::milliseconds(2);
// How long ranks may go on after one of them has failed before they are ended.
constexpr auto kGrace = std::chrono::seconds(5);

/// How a rank ended, in shared memory.
struct Outcome {
  int32_t reported;
  int32_t code;
  char message[2048];

  void set(const Status& status) {
    code = static_cast<int32_t>(status.code());
    std::snprintf(message, sizeof message, "%s", status.message().c_str());
    reported = 1;
  }
};

Status guarded(const Body& body, const Group& group) {
  try {
    return body(group);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return Status(Code::kSystem, error.what());
  }
}

/// Ranks that only report that another one failed come last.
bool consequence(Code code) {
  return code == Code::kPeerFailed || code == Code::kTimedOut;
}

Status verdict(const SharedArray<Outcome>& outcomes) {
  const Outcome* first = nullptr;
  for (int64_t r = 0; r < outcomes.size(); ++r) {
    const Outcome& o = outcomes[r];
    const auto code = static_cast<Code>(o.code);
    if (code == Code::kOk) continue;
    if (first == nullptr || (consequence(static_cast<Code>(first->code)) && !consequence(code))) first = &o;
  }
  return first == nullptr ? Status::ok() : Status(static_cast<Code>(first->code), first->message);
}

Status run_threads(int ranks, const Body& body, const Tick& tick, SharedArray<Outcome>& outcomes) {
  auto groups = Group::local(ranks);
  if (!groups) return groups.status();
  std::atomic<int> running{ranks};
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      outcomes[r].set(guarded(body, (*groups)[static_cast<size_t>(r)]));
      running.fetch_sub(1, std::memory_order_release);
    });
  }
  for (auto next = std::chrono::steady_clock::now() + kTick; running.load(std::memory_order_acquire) > 0;) {
    std::this_thread::sleep_for(kPoll);
    if (std::chrono::steady_clock::now() < next) continue;
    next += kTick;
    if (tick) tick();
  }
  for (std::thread& thread : threads) thread.join();
  return Status::ok();
}

[[noreturn]] void run_child(const std::string& key, int rank, int ranks, const Body& body, Outcome& outcome) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto group = Group::shm(key, rank, ranks);
  outcome.set(group ? guarded(body, *group) : group.status());
  _exit(0);
}

Status run_processes(int ranks, const Body& body, const Tick& tick, SharedArray<Outcome>& outcomes) {
  static int groups = 0;
  const std::string key = "megamoe-" + std::to_string(getpid()) + "-" + std::to_string(groups++);
  std::fflush(stdout);
  std::fflush(stderr);
  std::vector<pid_t> children(static_cast<size_t>(ranks), -1);
  Status started;
  for (int r = 0; r < ranks && started; ++r) {
    const pid_t child = fork();
    if (child == 0) run_child(key, r, ranks, body, outcomes[r]);
    if (child < 0) started = Status(Code::kSystem, std::string("cannot fork: ") + std::strerror(errno));
    children[static_cast<size_t>(r)] = child;
  }
  auto end_all = [&] {
    for (pid_t child : children) {
      if (child > 0) kill(child, SIGKILL);
    }
  };
  if (!started) end_all();

  int left = static_cast<int>(std::count_if(children.begin(), children.end(), [](pid_t p) { return p > 0; }));
  auto next = std::chrono::steady_clock::now() + kTick;
  std::chrono::steady_clock::time_point limit = std::chrono::steady_clock::time_point::max();
  while (left > 0) {
    for (int r = 0; r < ranks; ++r) {
      pid_t& child = children[static_cast<size_t>(r)];
      int state = 0;
      if (child <= 0 || waitpid(child, &state, WNOHANG) != child) continue;
      child = -1;
      --left;
      if (outcomes[r].reported == 0) {
        const std::string how = WIFSIGNALED(state) ? "signal " + std::to_string(WTERMSIG(state))
                                                   : "exit status " + std::to_string(WEXITSTATUS(state));
        // A rank ended by this process after another failed is no cause.
        const bool ended_here = limit != std::chrono::steady_clock::time_point::max();
        outcomes[r].set(Status(ended_here ? Code::kPeerFailed : Code::kSystem,
                               "rank " + std::to_string(r) + " ended by " + how + ": expected a result"));
      }
      if (outcomes[r].code != 0) limit = std::min(limit, std::chrono::steady_clock::now() + kGrace);
    }
    if (left == 0) break;
    std::this_thread::sleep_for(kPoll);
    const auto now = std::chrono::steady_clock::now();
    if (now > limit) end_all();
    if (now >= next) {
      next += kTick;
      if (tick) tick();
    }
  }
  return started;
}

constexpr struct {
  const char* name;
  Status (*run)(int, const Body&, const Tick&, SharedArray<Outcome>&);
} kTransports[] = {{"local", run_threads}, {"shm", run_processes}};

}  // namespace

Result<SharedMemory> SharedMemory::make(size_t bytes) {
  SharedMemory memory;
  if (bytes == 0) return memory;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return Status(Code::kOutOfMemory,
                  "cannot share " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  }
  memory.data_ = address;
  memory.bytes_ = bytes;
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Status run_on_ranks(const std::string& transport, int ranks, const Body& body, const Tick& tick) {
  auto outcomes = SharedArray<Outcome>::make(ranks);
  if (!outcomes) return outcomes.status();
  for (const auto& row : kTransports) {
    if (transport != row.name) continue;
    MEGAMOE_RETURN_IF_ERROR(row.run(ranks, body, tick, *outcomes));
    return verdict(*outcomes);
  }
  return Status(Code::kInvalidArgument, "transport = " + transport + ": expected local or shm");
}

}  // namespace megamoe::cli
