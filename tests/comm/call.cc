// Records, verdict, rows with arrival counts, rows back with return counts, zeroing.
#include "comm/call.h"

#include <cstring>
#include <string>

namespace megamoe::test {

using comm::Session;
using comm::Stage;

namespace {

/// Content of one row, different for each call, sender and slot.
uint64_t row_value(uint64_t call, int source, int64_t slot) {
  return call * 1000003 + static_cast<uint64_t>(source) * 1009 + static_cast<uint64_t>(slot) + 1;
}

Status wrong(const char* what) {
  return Status(Code::kDataLoss, std::string("wrong contents: ") + what);
}

}  // namespace

comm::LayoutInput small_input(int ranks) {
  comm::LayoutInput input;
  input.ranks = ranks;
  input.experts = ranks * kExpertsPerRank;
  input.experts_per_rank = kExpertsPerRank;
  input.max_tokens = kMaxTokens;
  input.topk = kTopk;
  input.capacity = ranks * kMaxTokens * kTopk - 1;
  input.block_rows = 4;
  input.code_row_bytes = 64;
  input.slot_row_bytes = 64;
  return input;
}

Caller::Caller(Session& session, uint64_t seed, AtPoint at)
    : session_(session),
      layout_(*comm::SymmLayout::make(small_input(session.size()))),
      matrix_(session.size(), session.size() * kExpertsPerRank),
      random_(seed * 977 + static_cast<uint64_t>(session.rank())),
      at_(std::move(at)) {}

std::atomic_ref<uint32_t> Caller::counter(size_t offset) const {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(session_.segment(session_.rank()) + offset));
}

Status Caller::call(const Status& bad) {
  const auto experts = static_cast<uint64_t>(layout_.input.experts);
  std::vector<int> slots(kMaxTokens * kTopk);
  for (int& expert : slots) expert = static_cast<int>(random_() % (experts + 1)) - 1;
  slots[random_() % slots.size()] = -1;  // never all rows of all ranks to one rank
  return run(bad, slots);
}

Status Caller::call_to(int expert, int rows) {
  std::vector<int> slots(kMaxTokens * kTopk, -1);
  for (int i = 0; i < rows; ++i) slots[i] = expert;
  return run(Status::ok(), slots);
}

Status Caller::run(const Status& bad, const std::vector<int>& expert_of_slot) {
  Result<uint64_t> begun = session_.begin_call();
  if (!begun.is_ok()) return begun.status();
  call_ = *begun;
  std::vector<uint32_t> counts(layout_.input.experts);
  if (bad.is_ok()) {
    for (int expert : expert_of_slot) {
      if (expert >= 0) ++counts[expert];
    }
  }
  at(Point::kBeforeRecords);
  const Status outcome = exchange(session_, layout_, {bad, kMaxTokens, {}, counts}, matrix_);
  if (!outcome.is_ok()) {
    if (session_.broken().is_ok()) session_.end_call();
    return outcome;
  }
  for (int64_t e = 0; e < layout_.input.experts; ++e) {
    if (matrix_.count(session_.rank(), e) != counts[e]) return wrong("own counts");
  }
  for (int r = 0; r < session_.size(); ++r) {
    if (matrix_.tokens(r) != kMaxTokens) return wrong("tokens");
  }
  MEGAMOE_RETURN_IF_ERROR(send_rows(expert_of_slot));
  MEGAMOE_RETURN_IF_ERROR(return_rows());
  MEGAMOE_RETURN_IF_ERROR(combine(expert_of_slot));
  at(Point::kBeforeEnd);
  session_.end_call();
  return Status::ok();
}

size_t Caller::first_row(int expert, int source) const {
  size_t row = 0;
  for (int e = expert / kExpertsPerRank * kExpertsPerRank; e <= expert; ++e) {
    for (int s = 0; s < (e == expert ? source : session_.size()); ++s) row += matrix_.count(s, e);
  }
  return row;
}

Status Caller::send_rows(const std::vector<int>& expert_of_slot) {
  at(Point::kBeforeRows);
  const int rank = session_.rank();
  std::vector<size_t> next(layout_.input.experts);
  for (size_t e = 0; e < next.size(); ++e) next[e] = first_row(static_cast<int>(e), rank);
  for (size_t i = 0; i < expert_of_slot.size(); ++i) {
    if (i == expert_of_slot.size() / 2) at(Point::kBetweenRows);
    const int expert = expert_of_slot[i];
    if (expert < 0) continue;
    const int owner = expert / static_cast<int>(kExpertsPerRank);
    const size_t row = next[expert]++;
    const uint64_t value = row_value(call_, rank, static_cast<int64_t>(i));
    const comm::RowHome home{rank, static_cast<int16_t>(i % kTopk), 0, static_cast<int64_t>(i / kTopk)};
    session_.transport().put(owner, layout_.codes + row * layout_.code_stride(), &value, sizeof(value));
    session_.transport().put(owner, layout_.homes + row * sizeof(home), &home, sizeof(home));
    session_.add(owner, layout_.arrived + expert % kExpertsPerRank * sizeof(uint32_t), 1);
  }
  return Status::ok();
}

Status Caller::return_rows() {
  // One arrival counter per local expert is enough here: blocks are the pipeline's matter.
  const std::byte* own = session_.segment(session_.rank());
  for (int local = 0; local < kExpertsPerRank; ++local) {
    const int expert = session_.rank() * static_cast<int>(kExpertsPerRank) + local;
    const size_t first = first_row(expert, 0);
    const size_t total = first_row(expert, session_.size()) - first;
    const auto arrived = counter(layout_.arrived + local * sizeof(uint32_t));
    MEGAMOE_RETURN_IF_ERROR(session_.wait_until(
        [&] { return arrived.load(std::memory_order_acquire) == total; }, Stage::kBlocks));
    at(Point::kBeforeReturn);
    for (size_t row = first; row < first + total; ++row) {
      comm::RowHome home;
      uint64_t value;
      std::memcpy(&home, own + layout_.homes + row * sizeof(home), sizeof(home));
      std::memcpy(&value, own + layout_.codes + row * layout_.code_stride(), sizeof(value));
      const int64_t slot = home.token * kTopk + home.slot;
      if (value != row_value(call_, home.rank, slot)) return wrong("row");
      value = value * 3 + static_cast<uint64_t>(expert);
      session_.transport().put(home.rank, layout_.slots + static_cast<size_t>(slot) * layout_.slot_stride(),
                               &value, sizeof(value));
      session_.add(home.rank, layout_.done + static_cast<size_t>(home.token) * sizeof(uint32_t), 1);
    }
  }
  return Status::ok();
}

Status Caller::combine(const std::vector<int>& expert_of_slot) {
  at(Point::kBeforeCombine);
  const std::byte* own = session_.segment(session_.rank());
  for (int64_t token = 0; token < kMaxTokens; ++token) {
    uint32_t used = 0;
    for (int64_t k = 0; k < kTopk; ++k) used += expert_of_slot[token * kTopk + k] >= 0;
    const auto done = counter(layout_.done + static_cast<size_t>(token) * sizeof(uint32_t));
    MEGAMOE_RETURN_IF_ERROR(
        session_.wait_until([&] { return done.load(std::memory_order_acquire) == used; }, Stage::kReturn));
    for (int64_t slot = token * kTopk; slot < (token + 1) * kTopk; ++slot) {
      if (expert_of_slot[slot] < 0) continue;
      uint64_t value;
      std::memcpy(&value, own + layout_.slots + static_cast<size_t>(slot) * layout_.slot_stride(),
                  sizeof(value));
      if (value !=
          row_value(call_, session_.rank(), slot) * 3 + static_cast<uint64_t>(expert_of_slot[slot])) {
        return wrong("slot");
      }
    }
    done.store(0, std::memory_order_relaxed);
  }
  for (int local = 0; local < kExpertsPerRank; ++local) {
    counter(layout_.arrived + local * sizeof(uint32_t)).store(0, std::memory_order_relaxed);
  }
  return Status::ok();
}

Result<std::unique_ptr<Session>> open_small(const Group& group, std::chrono::milliseconds deadline,
                                            const comm::Settings& settings) {
  comm::SessionOptions options;
  options.deadline = deadline;
  const Result<comm::SymmLayout> layout = comm::SymmLayout::make(small_input(group.size()));
  if (!layout.is_ok()) return layout.status();
  return Session::open(group, layout.value().total, settings, options);
}

}  // namespace megamoe::test
