// Tokens that take no part are not read: their rows of x lie on pages that nobody may touch.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "support/runs.h"

namespace megamoe {
namespace {

using test::LayerOptions;
using test::RankTokens;
using test::TestLayer;

constexpr int64_t kTokens = 6, kHidden = 64, kPage = 4096;

/// Rows of a page each; those of masked tokens are closed.
class RowsOnPages {
 public:
  RowsOnPages(const TensorView& x, const std::vector<int8_t>& active)
      : memory_(static_cast<std::byte*>(
            mmap(nullptr, kTokens * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        view_(x) {
    const int64_t row_bytes = kHidden * dtype_bits(x.dtype) / 8;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::byte* const row = memory_ + t * kPage;
      std::memcpy(row, static_cast<const std::byte*>(x.data) + t * row_bytes, static_cast<size_t>(row_bytes));
      if (active[static_cast<size_t>(t)] == 0) {
        EXPECT_EQ(mprotect(row, kPage, PROT_NONE), 0);
      }
    }
    view_.data = memory_;
    view_.strides[0] = kPage * 8 / dtype_bits(x.dtype);
  }
  RowsOnPages(const RowsOnPages&) = delete;
  RowsOnPages& operator=(const RowsOnPages&) = delete;
  ~RowsOnPages() { munmap(memory_, kTokens * kPage); }

  const TensorView& view() const { return view_; }

 private:
  std::byte* memory_;
  TensorView view_;
};

class Mask : public testing::TestWithParam<const char*> {};

TEST_P(Mask, RowsOfMaskedTokensAreNotRead) {
  const bool has_scales = test::traits_of(GetParam()).mode == 4;
  for (const bool coded : {false, true}) {
    if (coded && !has_scales) continue;
    for (const int64_t shared : {0, 2}) {
      LayerOptions options;
      options.coded_x = coded;
      options.shared_experts = shared;
      TestLayer layer({kHidden, 32, 4, 2, GetParam(), "swiglu"}, 11, options);
      RankTokens tokens = layer.tokens(kTokens);
      tokens.active = {1, 0, 1, 0, 0, 1};
      const std::vector<uint16_t> want = layer.reference({tokens}, kTokens)[0].y;
      for (const Isa isa : test::runnable_levels()) {
        layer.poison(tokens);
        auto buffer = SymmBuffer::create(Group::self(), layer.config(kTokens), test::options(2, isa));
        ASSERT_TRUE(buffer) << buffer.status().message();
        auto moe = MegaMoe::create(*buffer, layer.layer(1, 0, true));
        ASSERT_TRUE(moe) << moe.status().message();
        CallArgs args = layer.args(tokens, 4);
        const RowsOnPages rows(args.x, tokens.active);
        args.x = rows.view();
        const Status status = (*moe)->run(args);
        ASSERT_TRUE(status.is_ok()) << status.message();
        EXPECT_LT(test::relative_error(tokens.y, want), layer.traits().bound)
            << isa_name(isa) << ", x as codes " << coded << ", " << shared << " shared experts";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Mask, testing::ValuesIn(test::scenario_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace megamoe
