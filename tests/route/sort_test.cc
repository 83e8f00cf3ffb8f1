// The stable sort of slots by expert against std::stable_sort.
#include "route/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "route/tensors.h"

namespace megamoe::route {
namespace {

Workers workers(int threads) {
  auto result = Workers::create({.threads = threads, .isa = std::nullopt});
  EXPECT_TRUE(result) << result.status().message();
  return *result;
}

std::vector<int64_t> flat(const Input& ids) {
  const IdView view(ids.view());
  std::vector<int64_t> result;
  for (int64_t i = 0; i < view.count(); ++i) result.push_back(view.at(i));
  return result;
}

struct Expected {
  std::vector<int32_t> places, order;
};

Expected expected(const std::vector<int64_t>& ids, int64_t start, int64_t end) {
  std::vector<int32_t> order(ids.size()), places(ids.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int32_t slot) { return ids[slot] < start ? INT64_MAX : ids[slot]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t id = ids[order[i]];
    places[order[i]] = id >= start && id < end ? static_cast<int32_t>(i) : -1;
  }
  return {places, order};
}

void check(const Input& ids, int64_t start, int64_t end, int64_t experts, int threads) {
  Workers team = workers(threads);
  const IdView view(ids.view());
  CountingSort sort(view, start, experts - start + 1, team);
  std::vector<int32_t> places(static_cast<size_t>(view.count())), order(places);
  sort.place({end - start, 0}, places.data(), order.data(), team);
  const std::vector<int64_t> plain = flat(ids);
  const Expected want = expected(plain, start, end);
  EXPECT_EQ(places, want.places);
  EXPECT_EQ(order, want.order);
  for (int64_t e = start; e < end; ++e) {
    EXPECT_EQ(sort.counts()[e - start], std::count(plain.begin(), plain.end(), e)) << e;
  }
}

TEST(Sort, EqualsStableSort) {
  std::mt19937 random(1);
  for (int64_t tokens : {0, 1, 15, 16, 17, 255, 256, 257, 1023, 1025}) {
    for (int64_t experts : {1, 2, 64, 65, 256}) {
      for (bool wide : {false, true}) {
        const DType type = tokens % 2 == 0 ? DType::kInt32 : DType::kInt64;
        check(random_ids(random, type, {tokens, 3}, -1, experts - 1, wide), 0, experts, experts, 1);
        check(random_ids(random, type, {tokens, 1}, -1, experts - 1, wide), experts / 3, experts / 2 + 1,
              experts, 1);
      }
    }
  }
}

TEST(Sort, ThreadsChangeNothing) {
  std::mt19937 random(2);
  for (int threads : {1, 2, 3, 5}) {
    check(random_ids(random, DType::kInt32, {40000, 8}, -1, 255), 0, 256, 256, threads);
    check(random_ids(random, DType::kInt64, {40000, 8}, -1, 6, true), 2, 5, 7, threads);
  }
}

TEST(Sort, FirstAndLastExpert) {
  for (int64_t experts : {1, 2, 64, 65}) {
    for (int64_t id : {int64_t{0}, experts - 1}) {
      check(Input(DType::kInt32, {37, 2}).fill([&](int64_t, int64_t) { return id; }), 0, experts, experts, 2);
    }
  }
}

TEST(Sort, RadixEqualsStableSort) {
  std::mt19937 random(3);
  for (int64_t most : {0, 5, 2047, 2048, 100000, 2147483646}) {
    for (int64_t count : {0, 1, 300, 4097}) {
      const Input ids = random_ids(random, DType::kInt64, {count}, most / 2, most);
      std::vector<int32_t> places(static_cast<size_t>(count));
      radix_positions(IdView(ids.view()), most, places.data());
      EXPECT_EQ(places, expected(flat(ids), 0, INT64_MAX).places) << most << " " << count;
    }
  }
}

TEST(Sort, RangeAndFirstOutside) {
  Workers team = workers(3);
  Input ids = Input(DType::kInt64, {100000, 2}, true).fill([](int64_t t, int64_t k) { return (t + k) % 7; });
  IdView view(ids.view());
  IdRange range = id_range(view, team);
  EXPECT_EQ(range.least, 0);
  EXPECT_EQ(range.most, 6);
  ids.set(70001, 1, 1e15);
  ids.set(90000, 0, -5);
  range = id_range(view, team);
  EXPECT_EQ(range.least, -5);
  EXPECT_EQ(range.most, 1000000000000000);
  const IdAt first = first_outside(view, 0, 6);
  EXPECT_EQ(first.slot, 140003);
  EXPECT_EQ(first.id, 1000000000000000);
}

}  // namespace
}  // namespace megamoe::route
