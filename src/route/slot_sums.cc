// Which rows of a token's slots count, handed to the kernel that adds them.
#include "route/slot_sums.h"

#include <algorithm>
#include <vector>

#include "base/memory.h"
#include "route/check.h"
#include "route/row_access.h"

namespace megamoe::route {
namespace {

/// Adds up tokens; one per thread.
class Summer {
 public:
  Summer(const SlotSums& sums, const kernel::RowOps& ops)
      : sums_(sums),
        sum_rows_(ops.sum_rows[static_cast<int>(row_type(sums.rows.dtype))]),
        reader_(sums.rows, sums.topk),
        rows_(static_cast<size_t>(sums.topk)),
        weights_(static_cast<size_t>(sums.topk)),
        out_bytes_(bytes_of(sums.out.dtype, sums.out.shape[1])) {}

  void token(int64_t token) {
    const bool weighted = sums_.probs.present();
    int count = 0;
    bool from_zero = weighted;
    for (int64_t slot = 0; slot < sums_.topk; ++slot) {
      const int64_t row = sums_.index->at(token * sums_.topk + slot);
      if (row < 0 || row >= sums_.rows.shape[0]) {
        from_zero |= slot == 0;
        continue;
      }
      if (weighted) {
        weights_[count] =
            read_real(sums_.probs, token * sums_.probs.strides[0] + slot * sums_.probs.strides[1]);
        if (weights_[count] == 0) continue;
      }
      rows_[count] = reader_.row(row, count);
      ++count;
    }
    sum_rows_({.rows = rows_.data(),
               .weights = weighted ? weights_.data() : nullptr,
               .count = count,
               .from_zero = from_zero,
               .n = sums_.out.shape[1],
               .out = static_cast<std::byte*>(sums_.out.data) + token * out_bytes_});
  }

 private:
  const SlotSums& sums_;
  void (*sum_rows_)(const kernel::RowSum&);
  RowReader reader_;
  std::vector<const void*> rows_;
  std::vector<float> weights_;
  int64_t out_bytes_;
};

}  // namespace

int64_t token_grain(int64_t row_bytes, int64_t rows_per_token) {
  constexpr int64_t kBytesPerThread = 1 << 18;
  return base::ceil_div(kBytesPerThread, std::max<int64_t>(1, row_bytes * rows_per_token));
}

void sum_slots(const SlotSums& sums, Workers& workers) {
  const int64_t tokens = sums.out.shape[0];
  const int parts =
      workers.parts(tokens, token_grain(bytes_of(sums.rows.dtype, sums.rows.shape[1]), sums.topk + 1));
  std::vector<Summer> summers(static_cast<size_t>(parts), Summer(sums, workers.ops()));
  workers.run(parts, [&](int part) {
    const int64_t end = Workers::begin(tokens, parts, part + 1);
    for (int64_t t = Workers::begin(tokens, parts, part); t < end; ++t) summers[part].token(t);
  });
}

}  // namespace megamoe::route
