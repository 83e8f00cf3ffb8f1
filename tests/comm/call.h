// One whole call of the protocol with recognisable contents, made the way the pipeline makes it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "comm/exchange.h"
#include "comm/layout.h"
#include "comm/session.h"

namespace megamoe::test {

inline constexpr int64_t kTopk = 2;
inline constexpr int64_t kMaxTokens = 4;
inline constexpr int64_t kExpertsPerRank = 2;

/// Capacity is one row short of what all ranks together can send.
comm::LayoutInput small_input(int ranks);

/// Where a rank may do something special in a call.
enum class Point { kBeforeRecords, kBeforeRows, kBetweenRows, kBeforeReturn, kBeforeCombine, kBeforeEnd };
using AtPoint = std::function<void(uint64_t call, Point point)>;

/// A rank that can make calls.
class Caller {
 public:
  explicit Caller(comm::Session& session, uint64_t seed = 1, AtPoint at = {});

  /// One call with random routes. Wrong contents are an error too. `bad` is this rank's own argument error.
  Status call(const Status& bad = Status::ok());
  /// One call with `rows` rows to one expert.
  Status call_to(int expert, int rows);
  const comm::SymmLayout& layout() const { return layout_; }

 private:
  Status run(const Status& bad, const std::vector<int>& expert_of_slot);
  Status send_rows(const std::vector<int>& expert_of_slot);
  Status return_rows();
  Status combine(const std::vector<int>& expert_of_slot);
  void at(Point point) {
    if (at_) at_(call_, point);
  }
  size_t first_row(int expert, int source) const;
  std::atomic_ref<uint32_t> counter(size_t offset) const;

  comm::Session& session_;
  comm::SymmLayout layout_;
  comm::CallMatrix matrix_;
  std::mt19937_64 random_;
  AtPoint at_;
  uint64_t call_ = 0;
};

/// Opens a session with the memory that Caller needs.
Result<std::unique_ptr<comm::Session>> open_small(
    const Group& group, std::chrono::milliseconds deadline = std::chrono::seconds(60),
    const comm::Settings& settings = {{"hidden", "64"}});

}  // namespace megamoe::test
