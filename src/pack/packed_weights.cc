// Packs all panels of a linear layer once, with a few threads.
#include "pack/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/team.h"
#include "pack/panel_packer.h"

namespace megamoe {
namespace {

// Panels packed side by side where a source row spans them: reads then run along whole pieces of a row.
constexpr int64_t kPanelsAtOnce = 8;
constexpr int64_t kRowsAtOnce = 64;

/// Runs work(i) for i in [0, items) on up to `threads` threads, this one included.
template <class Work>
void for_each_item(int64_t items, int threads, const Work& work) {
  std::atomic<int64_t> next{0};
  auto loop = [&] {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < items;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      work(i);
    }
  };
  std::vector<std::thread> helpers;
  try {
    const int64_t extra = std::min<int64_t>(threads - 1, items - 1);
    for (int64_t t = 0; t < extra; ++t) helpers.emplace_back(loop);
  } catch (const std::exception&) {
    // Fewer threads than asked for: the ones that started and this one do all the work.
  }
  loop();
  for (std::thread& helper : helpers) helper.join();
}

Result<std::unique_ptr<PackedWeights::Impl>> checked_pack(const LinearWeights& weights, bool gated,
                                                          const char* name, int threads) {
  try {
    return PackedWeights::Impl::pack(weights, gated, name, threads);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, std::string(name) + " cannot be packed: out of memory");
  }
}

}  // namespace

Result<std::unique_ptr<PackedWeights::Impl>> PackedWeights::Impl::pack(const LinearWeights& weights,
                                                                       bool gated, const char* name,
                                                                       int threads) {
  MEGAMOE_RETURN_IF_ERROR(base::check_threads(threads));
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  auto geometry = pack::check_linear(weights, gated, name);
  if (!geometry) return geometry.status();

  auto impl = std::make_unique<Impl>();
  const pack::Geometry& g = impl->geometry_ = *geometry;
  impl->given_ = pack::given_form(weights);
  impl->panel_bytes_ = g.stored_bytes();
  const pack::PanelPacker packer(weights, g);
  const int64_t count = g.experts * g.panels();
  const int64_t row_bytes = kernel::kPanelColumns * 4;
  auto pages = base::Pages::allocate(g.packed_bytes(), /*huge=*/true);
  if (!pages) return pages.status();
  impl->memory_ = std::move(*pages);
  if (count == 0) return impl;
  std::byte* next = impl->memory_.data() + g.packed_bytes() - count * g.panel_rows() * row_bytes;
  const auto take = [&](bool wanted) {
    std::byte* const rows = wanted ? next : nullptr;
    if (wanted) next += count * row_bytes;
    return rows;
  };
  impl->sums_ = reinterpret_cast<int32_t*>(take(g.has_sums()));
  impl->scales_ = reinterpret_cast<float*>(take(g.has_channel_scales()));
  impl->bias_ = reinterpret_cast<float*>(take(g.has_bias));
  impl->added_bias_ = reinterpret_cast<float*>(take(g.has_added_bias));

  const int64_t at_once = packer.columns_contiguous() ? kPanelsAtOnce : 1;
  const int64_t rows_at_once = packer.columns_contiguous() ? kRowsAtOnce : g.k;
  const int64_t groups = base::ceil_div(g.panels(), at_once);
  for_each_item(g.experts * groups, threads, [&](int64_t item) {
    const int64_t expert = item / groups;
    const int64_t begin = item % groups * at_once, end = std::min(g.panels(), begin + at_once);
    for (int64_t k = 0; k < g.k; k += rows_at_once) {
      for (int64_t p = begin; p < end; ++p) {
        const int64_t i = expert * g.panels() + p;
        packer.pack(expert, p, k, std::min(g.k, k + rows_at_once),
                    impl->memory_.data() + i * impl->panel_bytes_,
                    impl->sums_ == nullptr ? nullptr : impl->sums_ + i * kernel::kPanelColumns);
      }
    }
    for (int64_t p = begin; p < end; ++p) {
      const int64_t i = (expert * g.panels() + p) * kernel::kPanelColumns;
      if (impl->scales_ != nullptr) packer.pack_scales(expert, p, impl->scales_ + i);
      if (impl->bias_ != nullptr) {
        packer.pack_bias(expert, p, impl->sums_ == nullptr ? nullptr : impl->sums_ + i, impl->bias_ + i);
      }
      if (impl->added_bias_ != nullptr) packer.pack_added_bias(expert, p, impl->added_bias_ + i);
    }
  });
  return impl;
}

Result<std::shared_ptr<const PackedWeights>> PackedWeights::pack_linear1(const LinearWeights& weights,
                                                                         bool gated, int threads) {
  auto impl = checked_pack(weights, gated, "weight1", threads);
  if (!impl) return impl.status();
  return std::shared_ptr<const PackedWeights>(new PackedWeights(std::move(*impl)));
}

Result<std::shared_ptr<const PackedWeights>> PackedWeights::pack_linear2(const LinearWeights& weights,
                                                                         int threads) {
  auto impl = checked_pack(weights, false, "weight2", threads);
  if (!impl) return impl.status();
  return std::shared_ptr<const PackedWeights>(new PackedWeights(std::move(*impl)));
}

PackedWeights::PackedWeights(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PackedWeights::~PackedWeights() = default;

DType PackedWeights::dtype() const {
  return impl_->geometry().dtype;
}
int64_t PackedWeights::experts() const {
  return impl_->geometry().experts;
}
int64_t PackedWeights::k() const {
  return impl_->geometry().k;
}
int64_t PackedWeights::n() const {
  return impl_->geometry().n;
}
int64_t PackedWeights::bytes() const {
  return static_cast<int64_t>(impl_->bytes());
}
std::string PackedWeights::format() const {
  const pack::Geometry& g = impl_->geometry();
  const std::string name = pack::weight_form_name(g.dtype, g.scales);
  return pack::is_grouped(g.scales) ? name + " " + std::to_string(scale_group()) : name;
}
bool PackedWeights::gated() const {
  return impl_->geometry().gated;
}
int64_t PackedWeights::interleave() const {
  return impl_->given().interleave;
}
int64_t PackedWeights::scale_group() const {
  return impl_->given().scale_group;
}
Layout PackedWeights::layout() const {
  return impl_->given().layout;
}
bool PackedWeights::k_last() const {
  return impl_->given().k_last;
}
bool PackedWeights::has_bias() const {
  return impl_->geometry().has_bias;
}
bool PackedWeights::has_added_bias() const {
  return impl_->geometry().has_added_bias;
}

Status PackedWeights::check_pair(const PackedWeights& linear1, const PackedWeights& linear2) {
  return pack::check_pair(linear1.impl().geometry(), "weight1", linear2.impl().geometry(), "weight2");
}

}  // namespace megamoe
