// Calls, failures and the end of one rank's part in a buffer. Waits are in wait.cc.
#include "comm/session.h"

#include "base/quoted.h"
#include "comm/session_impl.h"

namespace megamoe::comm {

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kCreate:
      return "creation";
    case Stage::kRecords:
      return "exchange of records";
    case Stage::kBlocks:
      return "arrival of rows";
    case Stage::kReturn:
      return "return of rows";
    case Stage::kNone:
      return "no stage";
  }
  return "unknown stage";
}

Result<std::unique_ptr<Session>> Session::open(const Group& group, size_t segment_bytes,
                                               const Settings& settings, const SessionOptions& options) {
  if (group.state() == nullptr) {
    return Status(Code::kInvalidArgument,
                  "group = empty handle: expected a handle of Group::self, local or shm");
  }
  if (segment_bytes < sizeof(SegmentHeader)) {
    return Status(Code::kInvalidArgument, "segment_bytes = " + std::to_string(segment_bytes) +
                                              ": expected at least " + std::to_string(sizeof(SegmentHeader)));
  }
  Result<std::unique_ptr<Transport>> transport =
      group.state()->meet({group.rank(), group.size(), full_settings(settings, segment_bytes), {}},
                          segment_bytes, Deadline(options.deadline));
  if (!transport.is_ok()) return transport.status();
  return std::unique_ptr<Session>(new Session(std::make_unique<Impl>(group, std::move(*transport), options)));
}

Status Session::refuse(const Group& group, const Status& why, const SessionOptions& options) {
  if (group.state() == nullptr) return why;
  const Hello hello{group.rank(), group.size(), full_settings({}, sizeof(SegmentHeader)), why};
  const Status verdict =
      group.state()->meet(hello, sizeof(SegmentHeader), Deadline(options.deadline)).status();
  // Where the others did not come, why this rank refused says more.
  const bool met = verdict.code() != Code::kTimedOut && verdict.code() != Code::kPeerFailed;
  return met && !verdict.is_ok() ? verdict : why;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  close();
}

int Session::rank() const {
  return impl_->rank;
}

int Session::size() const {
  return impl_->size;
}

std::byte* Session::segment(int rank) const {
  return impl_->segments[rank];
}

Transport& Session::transport() const {
  return *impl_->transport;
}

uint64_t Session::current_call() const {
  return impl_->call.load(std::memory_order_relaxed);
}

Result<uint64_t> Session::begin_call() {
  MEGAMOE_RETURN_IF_ERROR(impl_->ended());
  if (impl_->inherited()) {
    return Status(Code::kClosed,
                  "buffer: belongs to the process that created it, expected no use after fork()");
  }
  if (impl_->in_call.exchange(true, std::memory_order_acquire)) {
    return Status(Code::kInvalidArgument,
                  "buffer: a call is still running on it, expected one call at a time");
  }
  const uint64_t call = impl_->call.load(std::memory_order_relaxed) + 1;
  impl_->call.store(call, std::memory_order_relaxed);
  MEGAMOE_RETURN_IF_ERROR(impl_->check_peers(Stage::kRecords, false));
  return call;
}

void Session::end_call() {
  if (impl_->inherited()) return;
  impl_->header(impl_->rank).last_call.store(current_call(), std::memory_order_release);
  impl_->in_call.store(false, std::memory_order_release);
}

Status Session::fail(Code code, int culprit, Stage stage, const std::string& reason) {
  return impl_->fail(Failure{code, culprit, stage, reason});
}

Status Session::broken() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

void Session::add(int rank, size_t offset, uint32_t n) {
  std::byte* segment = impl_->segments[rank];
  if (segment == nullptr) {
    impl_->transport->add(rank, offset, n);
    return;
  }
  // Sequentially consistent with the sleeper's own count and re-check in wait_impl: one of both sees the
  // other.
  word_at(segment, offset).fetch_add(n, std::memory_order_seq_cst);
  if (impl_->header(rank).sleepers.load(std::memory_order_seq_cst) != 0) impl_->ring(rank);
}

void Session::ring(int rank) {
  impl_->ring(rank);
}

void Session::close() {
  Impl& impl = *impl_;
  if (impl.inherited()) return;
  {
    std::lock_guard lock(impl.mutex);
    if (impl.phase.load(std::memory_order_relaxed) != RankState::kRunning) return;
    impl.phase.store(RankState::kClosed, std::memory_order_release);
    impl.header(impl.rank).state.exchange(RankState::kClosed, std::memory_order_seq_cst);
  }
  impl.ring_all();
}

Session::Impl::Impl(const Group& group, std::unique_ptr<Transport> way, const SessionOptions& session_options)
    : rank(group.rank()),
      size(group.size()),
      state(group.state()),
      transport(std::move(way)),
      options(session_options),
      fork_generation(base::fork_generation()) {
  for (int r = 0; r < size; ++r) segments.push_back(transport->segment(r));
}

Status Session::Impl::ended() {
  switch (phase.load(std::memory_order_acquire)) {
    case RankState::kRunning:
      return Status::ok();
    case RankState::kClosed:
      return Status(Code::kClosed, "buffer: was destroyed, expected a live buffer");
    case RankState::kFailed:
      break;
  }
  std::lock_guard lock(mutex);
  return failure;
}

void Session::Impl::ring(int to) {
  SegmentHeader& peer = header(to);
  // The addition also orders the caller's store before the look at the sleepers.
  peer.bell.fetch_add(1, std::memory_order_seq_cst);
  if (peer.sleepers.load(std::memory_order_seq_cst) != 0) transport->wake(to, offsetof(SegmentHeader, bell));
}

void Session::Impl::ring_all() {
  for (int r = 0; r < size; ++r) ring(r);
}

Status Session::Impl::fail(const Failure& cause) {
  {
    std::lock_guard lock(mutex);
    const RankState now = phase.load(std::memory_order_relaxed);
    if (now == RankState::kFailed) return failure;
    failure = Status(cause.code,
                     cause.reason.substr(0, base::fitting_bytes(cause.reason, sizeof(FailureRecord::text))));
    if (now == RankState::kClosed || inherited()) return failure;
    phase.store(RankState::kFailed, std::memory_order_release);
    write_failure(header(rank), static_cast<int32_t>(cause.code), cause.culprit,
                  static_cast<uint32_t>(cause.stage), failure.message());
  }
  ring_all();
  std::lock_guard lock(mutex);
  return failure;
}

Failure Session::Impl::failure_of(int peer) {
  const FailureRecord& record = header(peer).failure;
  const size_t bytes = std::min<size_t>(record.text_bytes, sizeof(record.text));
  return Failure{static_cast<Code>(record.code), record.culprit, static_cast<Stage>(record.stage),
                 std::string(record.text, bytes)};
}

Status Session::Impl::check_peers(Stage stage, bool processes) {
  const uint64_t now = call.load(std::memory_order_relaxed);
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    SegmentHeader& peer = header(r);
    RankState state = peer.state.load(std::memory_order_acquire);
    if (state == RankState::kRunning && processes && transport->gone(r)) {
      // What it wrote before it went counts: a peer that failed or closed and exited did not die.
      state = peer.state.load(std::memory_order_acquire);
      if (state == RankState::kRunning) {
        return fail(Failure{Code::kPeerFailed, r, stage,
                            "rank " + std::to_string(r) + " died: its process ended before call " +
                                std::to_string(now) + " was over, noticed by rank " + std::to_string(rank) +
                                " in the " + stage_name(stage)});
      }
    }
    if (state == RankState::kFailed) return fail(failure_of(r));
    if (state == RankState::kClosed) {
      const uint64_t last = peer.last_call.load(std::memory_order_acquire);
      if (last < now) {
        return fail(Failure{Code::kPeerFailed, r, stage,
                            "rank " + std::to_string(r) + " left: its buffer was destroyed after call " +
                                std::to_string(last) + ", noticed by rank " + std::to_string(rank) +
                                " in the " + stage_name(stage) + " of call " + std::to_string(now)});
      }
    }
  }
  return Status::ok();
}

}  // namespace megamoe::comm
