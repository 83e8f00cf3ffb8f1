// Counting sort over chunks of slots, radix sort for large ids.
#include "route/sort.h"

#include <algorithm>
#include <utility>

namespace megamoe::route {
namespace {

constexpr int64_t kSlotsPerThread = 1 << 15;
constexpr int kRadixBits = 11;

/// Calls body(ids, begin, n) for blocks that cover [begin, end).
template <class Id, class Body>
void for_blocks(const IdView& ids, int64_t begin, int64_t end, Body&& body) {
  Id scratch[IdView::kBlock];
  for (int64_t at = begin; at < end; at += IdView::kBlock) {
    const int64_t n = std::min(IdView::kBlock, end - at);
    body(ids.block(at, n, scratch), at, n);
  }
}

template <class Id>
IdRange range_of(const IdView& ids, int64_t begin, int64_t end) {
  Id least = std::numeric_limits<Id>::max(), most = std::numeric_limits<Id>::min();
  for_blocks<Id>(ids, begin, end, [&](const Id* id, int64_t, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      least = std::min(least, id[i]);
      most = std::max(most, id[i]);
    }
  });
  return {least, most};
}

template <class Id>
IdAt find_outside(const IdView& ids, int64_t least, int64_t most) {
  IdAt found{-1, 0};
  for_blocks<Id>(ids, 0, ids.count(), [&](const Id* id, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n && found.slot < 0; ++i) {
      if (id[i] < least || id[i] > most) found = {at + i, id[i]};
    }
  });
  return found;
}

template <class Id>
void radix(const IdView& ids, int64_t most, int32_t* out) {
  const int64_t count = ids.count();
  std::vector<int32_t> from(static_cast<size_t>(count)), to(static_cast<size_t>(count));
  std::vector<int32_t> keys(static_cast<size_t>(count));
  for_blocks<Id>(ids, 0, count, [&](const Id* id, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      keys[at + i] = static_cast<int32_t>(id[i]);
      from[at + i] = static_cast<int32_t>(at + i);
    }
  });
  constexpr uint32_t kDigits = 1u << kRadixBits;
  for (int shift = 0; shift == 0 || most >> shift != 0; shift += kRadixBits) {
    uint32_t next[kDigits] = {};
    const auto digit = [&](int32_t slot) {
      return (static_cast<uint32_t>(keys[slot]) >> shift) & (kDigits - 1);
    };
    for (int64_t i = 0; i < count; ++i) ++next[digit(from[i])];
    uint32_t sum = 0;
    for (uint32_t& position : next) sum += std::exchange(position, sum);
    for (int64_t i = 0; i < count; ++i) to[next[digit(from[i])]++] = from[i];
    from.swap(to);
  }
  for (int64_t i = 0; i < count; ++i) out[from[i]] = static_cast<int32_t>(i);
}

}  // namespace

IdView::IdView(const TensorView& ids)
    : data_(ids.data),
      wide_(ids.dtype == DType::kInt64),
      contiguous_(ids.is_contiguous()),
      count_(ids.elements()),
      columns_(ids.dims > 1 ? ids.shape[1] : 1),
      row_stride_(ids.strides[0]),
      column_stride_(ids.dims > 1 ? ids.strides[1] : 0) {}

IdRange id_range(const IdView& ids, Workers& workers) {
  if (ids.count() == 0) return IdRange{};
  const int parts = workers.parts(ids.count(), kSlotsPerThread);
  std::vector<IdRange> ranges(static_cast<size_t>(parts));
  workers.run(parts, [&](int part) {
    const int64_t begin = Workers::begin(ids.count(), parts, part);
    const int64_t end = Workers::begin(ids.count(), parts, part + 1);
    ranges[part] = ids.wide() ? range_of<int64_t>(ids, begin, end) : range_of<int32_t>(ids, begin, end);
  });
  for (const IdRange& range : ranges) {
    ranges[0].least = std::min(ranges[0].least, range.least);
    ranges[0].most = std::max(ranges[0].most, range.most);
  }
  return ranges[0];
}

IdAt first_outside(const IdView& ids, int64_t least, int64_t most) {
  return ids.wide() ? find_outside<int64_t>(ids, least, most) : find_outside<int32_t>(ids, least, most);
}

template <class Id>
void CountingSort::count_part(int part) {
  uint32_t* const counts = next_.data() + part * buckets_;
  for_blocks<Id>(ids_, Workers::begin(ids_.count(), parts_, part),
                 Workers::begin(ids_.count(), parts_, part + 1), [&](const Id* id, int64_t, int64_t n) {
                   for (int64_t i = 0; i < n; ++i) {
                     ++counts[id[i] >= start_ ? id[i] - start_ : buckets_ - 1];
                   }
                 });
}

CountingSort::CountingSort(const IdView& ids, int64_t start, int64_t buckets, Workers& workers)
    : ids_(ids),
      start_(start),
      buckets_(buckets),
      // A thread pays for its own counts: not more of them than slots.
      parts_(workers.parts(ids.count(), std::max(kSlotsPerThread, buckets))),
      counts_(static_cast<size_t>(buckets)),
      first_(static_cast<size_t>(buckets)),
      next_(static_cast<size_t>(parts_ * buckets)) {
  workers.run(parts_, [&](int part) { ids_.wide() ? count_part<int64_t>(part) : count_part<int32_t>(part); });
  uint32_t position = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    first_[bucket] = position;
    for (int part = 0; part < parts_; ++part) {
      position += std::exchange(next_[part * buckets + bucket], position);
    }
    counts_[bucket] = position - first_[bucket];
  }
}

template <class Id>
void CountingSort::place_part(int part, const Placement& placement, int32_t* out, int32_t* order) {
  uint32_t* const next = next_.data() + part * buckets_;
  const int64_t begin = Workers::begin(ids_.count(), parts_, part);
  const int64_t end = Workers::begin(ids_.count(), parts_, part + 1);
  const auto bucket_of = [this](Id id) { return id >= start_ ? id - start_ : buckets_ - 1; };
  if (placement.capacity > 0) {
    for_blocks<Id>(ids_, begin, end, [&](const Id* id, int64_t at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t bucket = bucket_of(id[i]);
        const int64_t number = next[bucket]++ - first_[bucket];
        const bool kept = bucket < placement.kept_buckets && number < placement.capacity;
        out[at + i] = kept ? static_cast<int32_t>(bucket * placement.capacity + number) : -1;
      }
    });
    return;
  }
  for_blocks<Id>(ids_, begin, end, [&](const Id* id, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t bucket = bucket_of(id[i]);
      const uint32_t position = next[bucket]++;
      out[at + i] = bucket < placement.kept_buckets ? static_cast<int32_t>(position) : -1;
      if (order != nullptr) order[position] = static_cast<int32_t>(at + i);
    }
  });
}

void CountingSort::place(const Placement& placement, int32_t* out, int32_t* order, Workers& workers) {
  workers.run(parts_, [&](int part) {
    ids_.wide() ? place_part<int64_t>(part, placement, out, order)
                : place_part<int32_t>(part, placement, out, order);
  });
}

void radix_positions(const IdView& ids, int64_t most, int32_t* out) {
  ids.wide() ? radix<int64_t>(ids, most, out) : radix<int32_t>(ids, most, out);
}

}  // namespace megamoe::route
