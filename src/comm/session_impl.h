// State behind a Session, shared by session.cc and wait.cc.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/futex.h"
#include "comm/group_state.h"
#include "comm/mapped_transport.h"
#include "comm/segment_header.h"
#include "comm/session.h"

namespace megamoe::comm {

/// Why a session is broken.
struct Failure {
  Code code;
  int culprit;
  Stage stage;
  std::string reason;
};

class Session::Impl {
 public:
  Impl(const Group& group, std::unique_ptr<Transport> way, const SessionOptions& session_options);

  SegmentHeader& header(int of) { return *reinterpret_cast<SegmentHeader*>(segments[of]); }
  /// True in a child that got this object through fork(): it must leave the shared memory alone.
  bool inherited() const { return base::fork_generation() != fork_generation; }
  /// Ok while running; else the failure, or that the buffer was destroyed.
  Status ended();
  void ring(int to);
  void ring_all();
  Status fail(const Failure& cause);
  Failure failure_of(int peer);
  /// Fails this session when a peer has failed, left too early or, if `processes` are to be asked, died.
  Status check_peers(Stage stage, bool processes);

  const int rank;
  const int size;
  const std::shared_ptr<GroupState> state;
  const std::unique_ptr<Transport> transport;
  const SessionOptions options;
  const uint32_t fork_generation;
  std::vector<std::byte*> segments;  ///< of all ranks, cached from the transport

  std::atomic<uint64_t> call{0};
  std::atomic<bool> in_call{false};
  std::atomic<RankState> phase{RankState::kRunning};  ///< this rank's own state, as its threads see it
  std::mutex mutex;                                   ///< guards failure and changes of phase
  Status failure;
};

}  // namespace megamoe::comm
