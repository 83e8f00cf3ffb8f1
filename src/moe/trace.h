// When each thread of a rank did what during the last call.
#pragma once

#include <cstdint>
#include <vector>

#include "megamoe/mega_moe.h"

namespace megamoe::moe {

/// Spans by thread, in memory reserved up front; spans past the reservation are dropped. Off by default.
class TraceLog {
 public:
  static constexpr size_t kSpansPerThread = size_t{1} << 15;  ///< of one call, where nothing else is asked
  void enable(int threads, size_t spans_per_thread);
  void disable() { logs_.clear(); }
  bool enabled() const { return !logs_.empty(); }
  void clear();
  void add(int thread, TraceSpan::Stage stage, int64_t begin_ns, int64_t end_ns);
  std::vector<TraceSpan> spans() const;
  /// Whether no span was dropped. A log that is just full counts as cut.
  bool whole() const;

 private:
  struct alignas(64) Log {
    std::vector<TraceSpan> spans;
  };
  std::vector<Log> logs_;
};

int64_t now_ns();

/// Records the life of this object as one span.
class TraceScope {
 public:
  TraceScope(TraceLog& log, int thread, TraceSpan::Stage stage)
      : log_(log), thread_(thread), stage_(stage), begin_(log.enabled() ? now_ns() : 0) {}
  ~TraceScope() {
    if (log_.enabled()) log_.add(thread_, stage_, begin_, now_ns());
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  TraceLog& log_;
  int thread_;
  TraceSpan::Stage stage_;
  int64_t begin_;
};

}  // namespace megamoe::moe
