// Moving token rows: each token is read once, for all of its slots.
#include "route/rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/memory.h"
#include "base/topology.h"
#include "route/check.h"
#include "route/row_access.h"

namespace megamoe::route {
namespace {

constexpr int64_t kBytesPerThread = 1 << 18;
constexpr int64_t kLeastStreamed = 1 << 22;  // where the size of the caches is not known

/// Moves the rows of some tokens; one per thread.
class Mover {
 public:
  Mover(const RowMove& move, const kernel::RowOps& ops)
      : move_(move),
        ops_(ops),
        x_(move.x),
        smooth_(move.smooth),
        row_bytes_(move.row_bytes()),
        scale_bytes_(move.scale_bytes()),
        // Rows that will have left the caches before anyone reads them are written past the caches.
        streams_(move.mode.rule == nullptr &&
                 move.limit * row_bytes_ > std::max(kLeastStreamed, base::topology().l3_bytes)) {}

  void run(int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) move_token(token);
    if (streams_) ops_.stream_end();
  }

 private:
  void move_token(int64_t token) {
    const std::byte* source = nullptr;
    int64_t first = -1;
    for (int64_t slot = token * move_.topk; slot < (token + 1) * move_.topk; ++slot) {
      const int64_t to = move_.to[slot];
      if (to < 0 || to >= move_.limit) continue;
      if (source == nullptr) source = x_.row(token);
      if (move_.mode.rule == nullptr) {
        copy(source, to);
        if (scale_bytes_ != 0) copy_scales(token, to);
      } else if (first < 0 || move_.experts != nullptr) {
        quantise(source, slot, to);
        first = to;
      } else {
        std::memcpy(codes(to), codes(first), static_cast<size_t>(row_bytes_));
        if (scale_bytes_ != 0) std::memcpy(scales(to), scales(first), static_cast<size_t>(scale_bytes_));
      }
    }
  }

  std::byte* codes(int64_t row) const { return static_cast<std::byte*>(move_.rows) + row * row_bytes_; }
  std::byte* scales(int64_t row) const { return static_cast<std::byte*>(move_.scales) + row * scale_bytes_; }

  void copy(const std::byte* source, int64_t to) const {
    if (streams_) {
      ops_.stream_row(codes(to), source, row_bytes_);
    } else {
      std::memcpy(codes(to), source, static_cast<size_t>(row_bytes_));
    }
  }

  void copy_scales(int64_t token, int64_t to) const {
    const TensorView& from = move_.row_scales;
    const std::byte* const row = row_at(from, token);
    const int bytes = dtype_bits(from.dtype) / 8;
    if (from.dims == 1) {
      std::memcpy(scales(to), row, static_cast<size_t>(bytes));
      return;
    }
    for (int64_t pair = 0; pair < from.shape[1]; ++pair) {
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t at = pair * from.strides[1] + i * from.strides[2];
        std::memcpy(scales(to) + (2 * pair + i) * bytes, row + at * bytes, static_cast<size_t>(bytes));
      }
    }
  }

  void quantise(const std::byte* source, int64_t slot, int64_t to) {
    const float* smooth = nullptr;
    if (move_.smooth.present()) {
      const int64_t row = move_.experts != nullptr ? move_.experts->at(slot) - move_.first_expert : 0;
      smooth = reinterpret_cast<const float*>(smooth_.row(row));
    }
    ops_.quantise[static_cast<int>(move_.mode.rule->id)](
        {.x = source,
         .input = move_.x.dtype,
         .n = move_.x.shape[1],
         .smooth = smooth,
         .scale = move_.scale,
         .offset = move_.offset,
         .codes = codes(to),
         .scales = scale_bytes_ != 0 ? scales(to) : nullptr});
  }

  const RowMove& move_;
  const kernel::RowOps& ops_;
  RowReader x_, smooth_;
  int64_t row_bytes_, scale_bytes_;
  bool streams_;
};

}  // namespace

Result<TensorRef> describe_row_scales(const char* name, const RowMode& mode, int64_t rows, int64_t hidden) {
  if (!mode.rule->has_scales()) return TensorRef{};
  const int64_t columns = mode.rule->scale_columns(hidden);
  switch (mode.mode->scale_dims) {
    case 1:
      return describe_output(name, mode.rule->scales, {rows});
    case 2:
      return describe_output(name, mode.rule->scales, {rows, columns});
    default:
      return describe_output(name, mode.rule->scales, {rows, columns / 2, 2});
  }
}

int64_t RowMove::row_bytes() const {
  return mode.rule != nullptr ? mode.rule->code_bytes(x.shape[1]) : bytes_of(x.dtype, x.shape[1]);
}

int64_t RowMove::scale_bytes() const {
  if (scales == nullptr) return 0;
  if (mode.rule != nullptr) return mode.rule->scale_bytes(x.shape[1]);
  return bytes_of(row_scales.dtype, row_scales.dims == 1 ? 1 : row_scales.shape[1] * 2);
}

void move_rows(const RowMove& move, Workers& workers) {
  const int64_t tokens = move.x.shape[0];
  if (move.limit == 0 || tokens * move.topk == 0) return;
  const int64_t token_bytes = std::max<int64_t>(1, move.row_bytes() * move.topk);
  const int parts = workers.parts(tokens, base::ceil_div(kBytesPerThread, token_bytes));
  std::vector<Mover> movers(static_cast<size_t>(parts), Mover(move, workers.ops()));
  workers.run(parts, [&](int part) {
    movers[part].run(Workers::begin(tokens, parts, part), Workers::begin(tokens, parts, part + 1));
  });
}

void clear_rows(const RowMove& move, std::span<const RowRange> ranges, Workers& workers) {
  const int64_t row_bytes = move.row_bytes(), scale_bytes = move.scale_bytes();
  for (const RowRange& range : ranges) {
    const int64_t grain = base::ceil_div(kBytesPerThread, std::max<int64_t>(1, row_bytes));
    workers.split(range.end - range.begin, grain, [&](int64_t begin, int64_t end) {
      const int64_t first = range.begin + begin, count = end - begin;
      if (count == 0) return;
      std::memset(static_cast<std::byte*>(move.rows) + first * row_bytes, 0,
                  static_cast<size_t>(count * row_bytes));
      if (scale_bytes == 0) return;
      std::memset(static_cast<std::byte*>(move.scales) + first * scale_bytes, 0,
                  static_cast<size_t>(count * scale_bytes));
    });
  }
}

}  // namespace megamoe::route
