// Bytes of packed weights, and the memory that packing, planning and calls take beside them: counted at every
// operator new and at every mapping the library makes.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/layer.h"

namespace {

std::atomic<int64_t> g_held{0};
std::atomic<int64_t> g_most{0};

void account(int64_t bytes) {
  const int64_t held = g_held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = g_most.load(std::memory_order_relaxed);
  while (held > most && !g_most.compare_exchange_weak(most, held, std::memory_order_relaxed)) {
  }
}

[[gnu::noinline]] void* counted_malloc(std::size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory != nullptr) account(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

[[gnu::noinline]] void counted_free(void* memory) {
  if (memory != nullptr) account(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  void* memory = counted_malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t size) {
  return operator new(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return counted_malloc(size);
}
void operator delete(void* memory) noexcept {
  counted_free(memory);
}
void operator delete[](void* memory) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  counted_free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  counted_free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  counted_free(memory);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// In place of the ones of the C library, for this program and the library under test.
extern "C" void* mmap(void* address, size_t length, int protection, int flags, int fd,
                      off_t offset) noexcept {
  const long mapped = syscall(SYS_mmap, address, length, protection, flags, fd, offset);
  if (mapped != -1) account(static_cast<int64_t>(length));
  return reinterpret_cast<void*>(mapped);
}
extern "C" int munmap(void* address, size_t length) noexcept {
  const long result = syscall(SYS_munmap, address, length);
  if (result == 0) account(-static_cast<int64_t>(length));
  return static_cast<int>(result);
}

namespace megamoe {
namespace {

using test::RankTokens;
using test::TestLayer;

struct Width {
  const char* scenario;
  double most;  ///< bytes per weight, scales and column sums among them
};
void PrintTo(const Width& width, std::ostream* out) {
  *out << width.scenario;
}
constexpr Width kWidths[] = {{"A16W16", 2.001}, {"A8W8-INT", 1.04},     {"A8W4-INT", 0.51},
                             {"A8W8-FP", 1.04}, {"A8W8-FP-E5M2", 1.04}, {"A16W4-FP", 0.54},
                             {"A8W4-FP", 0.54}, {"A4W4-FP", 0.54}};
constexpr int64_t kShapes[][2] = {{2048, 768}, {2880, 2880}};  // hidden, intermediate
constexpr int64_t kExperts = 4;

/// Weights and scales of one layer, all zero.
struct ZeroWeights {
  std::vector<std::byte> codes, scales;
  LinearWeights view;

  ZeroWeights(const test::ScenarioTraits& traits, int64_t k, int64_t n)
      : codes(static_cast<size_t>(kExperts * k * n * dtype_bits(traits.weight) / 8)) {
    view.k_last = traits.mx();
    const int64_t groups = (k + 63) / 64;
    if (traits.mx()) {
      view.weight = {TensorView(codes.data(), traits.weight, {kExperts, n, k})};
      scales.resize(static_cast<size_t>(kExperts * n * groups * 2));
      view.scale = {TensorView(scales.data(), DType::kFloat8E8M0, {kExperts, n, groups, 2})};
      return;
    }
    view.weight = {TensorView(codes.data(), traits.weight, {kExperts, k, n})};
    if (!traits.channel_scales()) return;
    scales.resize(static_cast<size_t>(kExperts * n) * sizeof(uint64_t));
    view.scale = {TensorView(scales.data(), DType::kUInt64, {kExperts, n})};
  }
};

/// What body() held at most above what was held before it.
template <class Body>
int64_t most_of(const Body& body) {
  const int64_t before = g_held.load();
  g_most.store(before);
  body();
  return g_most.load() - before;
}

/// Addresses that packed weights take: whole huge pages.
int64_t addresses(const PackedWeights& packed) {
  constexpr int64_t kHugePage = 2 << 20;
  return (packed.bytes() + kHugePage - 1) / kHugePage * kHugePage;
}

class Memory : public testing::TestWithParam<Width> {};

TEST_P(Memory, PackedWeightsKeepTheirWidthAndNeedNoCopy) {
  for (const auto& [hidden, intermediate] : kShapes) {
    const test::ScenarioTraits& traits = test::traits_of(GetParam().scenario);
    const ZeroWeights first(traits, hidden, 2 * intermediate), second(traits, intermediate, hidden);
    std::shared_ptr<const PackedWeights> packed1, packed2;
    const int64_t most1 =
        most_of([&] { packed1 = PackedWeights::pack_linear1(first.view, true, 2).value(); });
    const int64_t most2 = most_of([&] { packed2 = PackedWeights::pack_linear2(second.view, 2).value(); });
    const auto weights = static_cast<double>(3 * kExperts * hidden * intermediate);
    const auto bytes = static_cast<double>(packed1->bytes() + packed2->bytes());
    EXPECT_LE(bytes / weights, GetParam().most) << hidden << " x " << intermediate;
    RecordProperty("bytes_per_weight_" + std::to_string(hidden), std::to_string(bytes / weights));
    // At most an expert per thread beside input and output; in fact a few records.
    EXPECT_LT(most1 - addresses(*packed1), 64 << 10) << hidden << " x " << intermediate;
    EXPECT_LT(most2 - addresses(*packed2), 64 << 10) << hidden << " x " << intermediate;
  }
}

// What packed int4 weights take, byte for byte: half a byte per weight, and for every output channel its
// scale, the sum of its codes and its biases, 4 bytes each. A short reduction has many channels for its
// weights.
TEST(MemoryOfInt4, IsThatOfCodesScalesSumsAndBiasesWithoutPadding) {
  constexpr int64_t kHidden = 1024, kInner = 512;
  const test::ScenarioTraits& traits = test::traits_of("A8W4-INT");
  ZeroWeights first(traits, kHidden, 2 * kInner), second(traits, kInner, kHidden);
  const std::vector<float> biases(static_cast<size_t>(kExperts * kHidden));
  for (const int of_both : {0, 1, 2}) {
    for (ZeroWeights* weights : {&first, &second}) {
      const TensorView bias(biases.data(), DType::kFloat32, {kExperts, kHidden});
      if (of_both >= 1) weights->view.bias = {bias};
      if (of_both == 2) weights->view.added_bias = {bias};
    }
    const auto packed1 = PackedWeights::pack_linear1(first.view, true, 2).value();
    const auto packed2 = PackedWeights::pack_linear2(second.view, 2).value();
    const int64_t weights = 3 * kExperts * kHidden * kInner;
    const int64_t channels = kExperts * (2 * kInner + kHidden);
    EXPECT_EQ(packed1->bytes() + packed2->bytes(), weights / 2 + channels * 4 * (2 + of_both));
    // 8 bytes for each channel are 0.0104 per weight at these sizes, each bias 0.0052 more: no bias is a
    // weight.
    const auto without = static_cast<double>(packed1->bytes() + packed2->bytes() - channels * 4 * of_both);
    EXPECT_LT(without / static_cast<double>(weights), 0.5105);
  }
}

TEST_P(Memory, NeitherPlanningNorCallsCopyWeights) {
  const auto [hidden, intermediate] = kShapes[0];
  TestLayer layer({hidden, intermediate, 1, 1, GetParam().scenario, "swiglu"}, 3);
  RankTokens tokens = layer.tokens(5);
  for (const bool packed : {true, false}) {
    const Layer given = layer.layer(1, 0, packed);
    auto buffer = SymmBuffer::create(Group::self(), layer.config(5), test::options(2));
    ASSERT_TRUE(buffer) << buffer.status().message();
    const int64_t most = most_of([&] {
      auto moe = MegaMoe::create(*buffer, given);
      ASSERT_TRUE(moe) << moe.status().message();
      for (int call = 0; call < 3; ++call) {
        const Status status = (*moe)->run(layer.args(tokens, 1));
        ASSERT_TRUE(status) << status.message();
      }
    });
    EXPECT_LT(most, 64 << 10) << (packed ? "packed" : "raw");
  }
}

// What a rank holds besides weights depends on tokens and threads: strips of one panel, never an expert.
TEST_P(Memory, ABufferHoldsNoWeights) {
  const auto [hidden, intermediate] = kShapes[0];
  TestLayer layer({hidden, intermediate, 1, 1, GetParam().scenario, "swiglu"}, 3);
  const auto held_by = [&](int64_t tokens, int threads) {
    std::shared_ptr<SymmBuffer> buffer;
    most_of([&] {
      buffer = SymmBuffer::create(Group::self(), layer.config(tokens), test::options(threads)).value();
    });
    const int64_t with = g_held.load();
    buffer.reset();
    return with - g_held.load();
  };
  const int64_t panel = 2 * intermediate * 32 * 4 + hidden * 32 * 4;
  EXPECT_LT(held_by(4, 3) - held_by(4, 2), 4 * panel) << "memory of one thread";
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Memory, testing::ValuesIn(kWidths), [](const auto& info) {
  std::string name = info.param.scenario;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace megamoe
#endif
