// Spans of the last call.
#include "moe/trace.h"

#include <algorithm>
#include <ctime>

namespace megamoe {

const char* trace_stage_name(TraceSpan::Stage stage) {
  switch (stage) {
    case TraceSpan::Stage::kExchange:
      return "exchange";
    case TraceSpan::Stage::kDispatch:
      return "dispatch";
    case TraceSpan::Stage::kPrepare:
      return "prepare";
    case TraceSpan::Stage::kLinear1:
      return "linear1";
    case TraceSpan::Stage::kRequantise:
      return "requantise";
    case TraceSpan::Stage::kLinear2:
      return "linear2";
    case TraceSpan::Stage::kCombine:
      return "combine";
    case TraceSpan::Stage::kWait:
      return "wait";
  }
  return "unknown";
}

namespace moe {

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void TraceLog::enable(int threads, size_t spans_per_thread) {
  logs_.resize(static_cast<size_t>(threads));
  for (Log& log : logs_) log.spans.reserve(spans_per_thread);
}

void TraceLog::clear() {
  for (Log& log : logs_) log.spans.clear();
}

void TraceLog::add(int thread, TraceSpan::Stage stage, int64_t begin_ns, int64_t end_ns) {
  std::vector<TraceSpan>& spans = logs_[static_cast<size_t>(thread)].spans;
  if (spans.size() == spans.capacity()) return;
  spans.push_back({stage, thread, begin_ns, end_ns});
}

std::vector<TraceSpan> TraceLog::spans() const {
  std::vector<TraceSpan> all;
  for (const Log& log : logs_) all.insert(all.end(), log.spans.begin(), log.spans.end());
  return all;
}

bool TraceLog::whole() const {
  return std::none_of(logs_.begin(), logs_.end(),
                      [](const Log& log) { return log.spans.size() == log.spans.capacity(); });
}

}  // namespace moe
}  // namespace megamoe
