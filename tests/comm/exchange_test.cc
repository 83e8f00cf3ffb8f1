// The verdict as a pure function; the comparison of settings; an exchange that allocates nothing.
#include "comm/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "comm/call.h"
#include "comm/settings.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Counts what the whole program allocates. Not inlined: the compiler would see new and free as a wrong pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace megamoe::comm {
namespace {

LayoutInput input_of(int64_t ranks, int64_t experts, int64_t experts_per_rank, int64_t capacity) {
  LayoutInput input;
  input.ranks = ranks;
  input.experts = experts;
  input.experts_per_rank = experts_per_rank;
  input.capacity = capacity;
  return input;
}

TEST(Verdict, FirstBadStatusByRankGoesBeforeCapacity) {
  CallMatrix matrix(3, 3);
  matrix.mutable_counts(0)[2] = 100;
  EXPECT_EQ(verdict(matrix, input_of(3, 3, 1, 100)).message(), "");
  matrix.mutable_statuses()[2] = Status(Code::kInvalidType, "two");
  EXPECT_EQ(verdict(matrix, input_of(3, 3, 1, 1)).message(), "rank 2: two");
  EXPECT_EQ(verdict(matrix, input_of(3, 3, 1, 1)).code(), Code::kInvalidType);
  matrix.mutable_statuses()[1] = Status(Code::kInvalidArgument, "one");
  EXPECT_EQ(verdict(matrix, input_of(3, 3, 1, 1)).message(), "rank 1: one");
}

TEST(Verdict, AloneThereIsNoPrefix) {
  CallMatrix matrix(1, 2);
  matrix.mutable_statuses()[0] = Status(Code::kInvalidType, "x = 1: expected 2");
  EXPECT_EQ(verdict(matrix, input_of(1, 2, 2, 1)).message(), "x = 1: expected 2");
}

TEST(Verdict, CapacityCountsAllExpertsOfARank) {
  // 5 experts on 3 ranks by 2: rank 2 owns only expert 4.
  CallMatrix matrix(3, 5);
  for (int s = 0; s < 3; ++s) {
    for (int e = 0; e < 5; ++e) matrix.mutable_counts(s)[e] = static_cast<uint32_t>(10 * (s + 1));
  }
  EXPECT_TRUE(verdict(matrix, input_of(3, 5, 2, 120)).is_ok());
  const Status over = verdict(matrix, input_of(3, 5, 2, 119));
  EXPECT_EQ(over.code(), Code::kCapacity);
  EXPECT_EQ(
      over.message(),
      "max_recv_token_num = 119: expected room for the rows that rank 0 receives in this call, needed 120, "
      "available 119");
  matrix.mutable_counts(1)[4] = 4000000000u;
  matrix.mutable_counts(2)[4] = 4000000000u;
  EXPECT_EQ(verdict(matrix, input_of(3, 5, 2, 120)).message(),
            "max_recv_token_num = 120: expected room for the rows that rank 2 receives in this call, needed "
            "8000000010, available 120");
}

TEST(Verdict, RanksWithoutExpertsReceiveNothing) {
  CallMatrix matrix(4, 2);
  for (int s = 0; s < 4; ++s) matrix.mutable_counts(s)[1] = 1;
  EXPECT_TRUE(verdict(matrix, input_of(4, 2, 1, 4)).is_ok());
  EXPECT_FALSE(verdict(matrix, input_of(4, 2, 1, 3)).is_ok());
}

TEST(Agree, NamesFieldRanksAndValues) {
  const auto text = [](std::vector<Hello> hellos) {
    std::vector<const Hello*> pointers;
    for (const Hello& hello : hellos) pointers.push_back(&hello);
    return agree(pointers).message();
  };
  EXPECT_EQ(text({{0, 2, {{"a", "1"}}, {}}, {1, 2, {{"a", "1"}}, {}}}), "");
  EXPECT_EQ(text({{1, 3, {{"a", "2"}}, {}}, {0, 3, {{"a", "1"}}, {}}, {2, 3, {{"a", "2"}}, {}}}),
            "a = 1 on rank 0; 2 on ranks 1, 2: expected the same value on every rank");
  EXPECT_EQ(text({{0, 3, {{"a", "x"}}, {}}, {1, 3, {{"a", "y"}}, {}}, {2, 3, {{"a", "z"}}, {}}}),
            "a = x on rank 0; y on rank 1; z on rank 2: expected the same value on every rank");
  EXPECT_EQ(text({{0, 2, {{"a", "1"}, {"b", "1"}}, {}}, {1, 2, {{"a", "1"}}, {}}}),
            "b = 1 on rank 0; (absent) on rank 1: expected the same value on every rank");
  EXPECT_EQ(text({{0, 2, {}, {}}, {1, 4, {}, {}}}),
            "group size = 2 on rank 0; 4 on rank 1: expected the same value on every rank");
  EXPECT_EQ(text({{0, 2, {}, {}}, {2, 2, {}, {}}}), "rank = 2: expected a value in [0, 2)");
  EXPECT_EQ(text({{1, 2, {}, {}}, {1, 2, {}, {}}}), "rank = 1 given by two members: expected each rank once");
  const Status refusal(Code::kInvalidArgument, "b = 2: expected 1");
  EXPECT_EQ(text({{2, 3, {}, refusal}, {0, 3, {{"a", "1"}}, {}}, {1, 3, {{"a", "1"}}, {}}}),
            "rank 2: b = 2: expected 1");
  EXPECT_EQ(text({{0, 1, {}, refusal}}), "b = 2: expected 1");
  EXPECT_EQ(full_settings({{"a", "1"}}, 4096).front().first, "library version");
  EXPECT_EQ(full_settings({{"a", "1"}}, 4096).back().second, "4096");
}

TEST(Exchange, AllocatesNothing) {
  auto session = test::open_small(Group::self());
  ASSERT_TRUE(session.is_ok());
  const SymmLayout layout = SymmLayout::make(test::small_input(1)).value();
  CallMatrix matrix(1, layout.input.experts);
  const std::vector<uint32_t> counts(layout.input.experts, 1);
  const int64_t before = allocations;
  bool good = true;
  for (int i = 0; i < 100; ++i) {
    good &= (*session)->begin_call().is_ok();
    good &= exchange(**session, layout, {Status::ok(), 3, {7}, counts}, matrix).is_ok();
    (*session)->end_call();
  }
  const int64_t after = allocations;
  EXPECT_TRUE(good);
  EXPECT_EQ(after, before);
  EXPECT_EQ(matrix.tokens(0), 3);
  EXPECT_EQ(matrix.layer(0), LayerMark{7});
  EXPECT_EQ(matrix.count(0, 1), 1u);
}

}  // namespace
}  // namespace megamoe::comm
