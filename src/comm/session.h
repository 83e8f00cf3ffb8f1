// One rank's part in a buffer: the mapped segments of all ranks, the state words, waits that always end.
// The exchange protocol it serves is written down in docs/protocol.md.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "comm/settings.h"
#include "comm/transport.h"
#include "megamoe/group.h"
#include "megamoe/status.h"

namespace megamoe::comm {

struct SessionOptions {
  std::chrono::milliseconds deadline{60000};  ///< of creation and of each wait
  std::chrono::microseconds spin{100};        ///< how long a wait spins before it sleeps
};

/// What a wait was for, named in errors.
enum class Stage : uint32_t { kCreate, kRecords, kBlocks, kReturn, kNone };
const char* stage_name(Stage stage);

class Session {
 public:
  /// Collective: exchanges settings, maps the segments of all ranks (zeroed, reserved up front). A difference
  /// in settings is the same error on every rank: field, ranks and both values. A rank that does not come is
  /// named.
  static Result<std::unique_ptr<Session>> open(const Group& group, size_t segment_bytes,
                                               const Settings& settings, const SessionOptions& options);
  /// Collective in place of open(): this rank cannot take part, and every rank returns why, as "rank 2: ..."
  /// with its text, or what a rank before it refuses with. Never ok. An error of the meeting itself is this
  /// rank's own.
  static Status refuse(const Group& group, const Status& why, const SessionOptions& options);
  ~Session();

  int rank() const;
  int size() const;
  /// Segment of a rank in this process's memory (null where the transport cannot address it).
  std::byte* segment(int rank) const;
  Transport& transport() const;

  /// Starts call n = last call + 1 and returns n. An error at once when the session is broken, closed, or a
  /// peer has failed or closed before this call. Not thread safe: one call at a time.
  Result<uint64_t> begin_call();
  /// Marks call n as left: this rank owes nothing more for it.
  void end_call();
  uint64_t current_call() const;

  /// Blocks until ready() is true: spins, then sleeps on this rank's bell with a short time-out; every round
  /// also checks peers' states, peers' processes, the deadline and whether the program interrupts its waits,
  /// which is a failure of this rank. May be called by any number of threads of the rank at once. After a
  /// failure every wait of the session returns that failure.
  template <class Ready>
  Status wait_until(Ready&& ready, Stage stage) {
    return wait_impl(callback<bool>(ready), {}, {}, stage);
  }
  /// The same; `late()` returns the text that an error at the deadline gives for what has not come, for
  /// example "ranks 2, 3". It is called at most once.
  template <class Ready, class Late>
  Status wait_until(Ready&& ready, Stage stage, Late&& late) {
    return wait_impl(callback<bool>(ready), callback<std::string>(late), {}, stage);
  }
  /// The same for what threads of this rank may bring about as well: while idle() is false one of them works,
  /// and that time counts not against the deadline, which is for other ranks.
  template <class Ready, class Idle>
  Status wait_in_team(Ready&& ready, Idle&& idle, Stage stage) {
    return wait_impl(callback<bool>(ready), {}, callback<bool>(idle), stage);
  }

  /// Adds `n` to a uint32 counter at `offset` of `rank`'s segment with release order, then wakes that rank's
  /// sleepers.
  void add(int rank, size_t offset, uint32_t n);
  /// Wakes the sleeping waits of a rank (this one included), after a store they may wait for.
  void ring(int rank);

  /// Marks this session broken: state = failed with the reason, peers' waits woken. Returns the failure to
  /// report. The first reason stays.
  Status fail(Code code, int culprit, Stage stage, const std::string& reason);
  /// The failure, or ok.
  Status broken() const;

  /// Leaves: state = closed with the last call; idempotent, local, never blocks.
  void close();

 private:
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  /// A function of the caller of a wait, or none.
  template <class R>
  struct Callback {
    void* context = nullptr;
    R (*call)(void*) = nullptr;
    R operator()() const { return call(context); }
    explicit operator bool() const { return call != nullptr; }
  };
  template <class R, class F>
  static Callback<R> callback(const F& f) {
    return {const_cast<F*>(std::addressof(f)),
            [](void* context) -> R { return (*static_cast<F*>(context))(); }};
  }
  Status wait_impl(Callback<bool> ready, Callback<std::string> late, Callback<bool> idle, Stage stage);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megamoe::comm
