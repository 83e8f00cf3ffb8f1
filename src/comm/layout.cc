// Computes the offsets of a rank's segment, every size checked against overflow.
#include "comm/layout.h"

#include <limits>
#include <string>

#include "comm/exchange.h"
#include "comm/segment_header.h"

namespace megamoe::comm {
namespace {

constexpr uint64_t kPage = 4096;
/// Kept below the largest signed size, so that offsets fit both kinds.
constexpr uint64_t kLimit = std::numeric_limits<int64_t>::max();

/// Places parts one behind the other; remembers the first part that does not fit into 64 bits.
class Placer {
 public:
  explicit Placer(uint64_t start) : end_(start) {}

  /// A part of `count` elements of `bytes`, or count x inner of them. Returns its offset.
  size_t place(const char* part, uint64_t count, uint64_t inner, uint64_t bytes) {
    const uint64_t start = end_;
    uint64_t size = 0;
    const bool overflow = __builtin_mul_overflow(count, inner, &size) ||
                          __builtin_mul_overflow(size, bytes, &size) ||
                          __builtin_add_overflow(size, uint64_t{63}, &size) ||
                          __builtin_add_overflow(start, size / 64 * 64, &end_) || end_ > kLimit - kPage;
    if (overflow && status_.is_ok()) {
      status_ = Status(Code::kInvalidArgument,
                       "symmetric memory: " + std::string(part) + " = " + std::to_string(count) + " x " +
                           (inner == 1 ? "" : std::to_string(inner) + " x ") + std::to_string(bytes) +
                           " bytes after " + std::to_string(start) +
                           " bytes: expected less than 2^63 bytes in all");
    }
    if (overflow) end_ = start;
    return start;
  }
  const Status& status() const { return status_; }
  uint64_t end() const { return end_; }

 private:
  uint64_t end_;
  Status status_;
};

Status check(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::ok();
  return Status(Code::kInvalidArgument, std::string(name) + " = " + std::to_string(value) +
                                            ": expected a value in [" + std::to_string(least) + ", " +
                                            std::to_string(most) + "]");
}

}  // namespace

Result<SymmLayout> SymmLayout::make(const LayoutInput& input) {
  // Each limit alone keeps the small sums below (rounding up, blocks) inside 64 bits; products are checked
  // one by one.
  constexpr int64_t kMost = int64_t{1} << 60;
  constexpr int64_t kInt32 = std::numeric_limits<int32_t>::max();
  MEGAMOE_RETURN_IF_ERROR(check("ranks", input.ranks, 1, kInt32));
  MEGAMOE_RETURN_IF_ERROR(check("experts", input.experts, 0, kInt32));
  MEGAMOE_RETURN_IF_ERROR(check("experts_per_rank", input.experts_per_rank, 0, kInt32));
  MEGAMOE_RETURN_IF_ERROR(check("max_tokens", input.max_tokens, 0, kMost));
  MEGAMOE_RETURN_IF_ERROR(check("topk", input.topk, 0, kInt32));
  MEGAMOE_RETURN_IF_ERROR(check("capacity", input.capacity, 0, kMost));
  MEGAMOE_RETURN_IF_ERROR(check("block_rows", input.block_rows, 1, kMost));
  MEGAMOE_RETURN_IF_ERROR(check("code_row_bytes", input.code_row_bytes, 0, kMost));
  MEGAMOE_RETURN_IF_ERROR(check("scale_row_bytes", input.scale_row_bytes, 0, kMost));
  MEGAMOE_RETURN_IF_ERROR(check("slot_row_bytes", input.slot_row_bytes, 0, kMost));

  SymmLayout layout;
  layout.input = input;
  layout.record_bytes = comm::record_bytes(input.experts);
  const auto capacity = static_cast<uint64_t>(input.capacity);
  const auto tokens = static_cast<uint64_t>(input.max_tokens);
  Placer placer(sizeof(SegmentHeader));
  layout.records = placer.place("records", 2, static_cast<uint64_t>(input.ranks), layout.record_bytes);
  layout.arrived = placer.place("arrived", static_cast<uint64_t>(layout.max_blocks()), 1, sizeof(uint32_t));
  layout.codes = placer.place("codes", capacity, 1, layout.code_stride());
  layout.scales = placer.place("scales", capacity, 1, static_cast<uint64_t>(input.scale_row_bytes));
  layout.weights = placer.place("weights", capacity, 1, sizeof(float));
  layout.homes = placer.place("homes", capacity, 1, sizeof(RowHome));
  layout.slots = placer.place("slots", tokens, static_cast<uint64_t>(input.topk), layout.slot_stride());
  layout.done = placer.place("done", tokens, 1, sizeof(uint32_t));
  MEGAMOE_RETURN_IF_ERROR(placer.status());
  layout.total = static_cast<size_t>((placer.end() + kPage - 1) / kPage * kPage);
  return layout;
}

}  // namespace megamoe::comm
