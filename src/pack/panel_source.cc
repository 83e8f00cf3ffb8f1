// The two sources of panels: raw weights packed on demand, and packed weights.
#include "pack/panel_source.h"

#include "pack/packed_weights.h"
#include "pack/panel_packer.h"

namespace megamoe::pack {
namespace {

constexpr int64_t kRowBytes = kernel::kPanelColumns * 4;

class RawSource final : public PanelSource {
 public:
  RawSource(const LinearWeights& weights, const Geometry& geometry)
      : PanelSource(geometry),
        packer_(weights, geometry),
        panel_bytes_(kernel::panel_bytes(geometry.family, geometry.k)) {}

  Panel panel(int64_t expert, int64_t index, std::byte* strip) const override {
    auto* const sums = reinterpret_cast<int32_t*>(strip + panel_bytes_);
    auto* const scales = reinterpret_cast<float*>(strip + panel_bytes_ + kRowBytes);
    packer_.pack(expert, index, 0, geometry_.k, strip, sums);
    if (packer_.has_scales()) packer_.pack_scales(expert, index, scales);
    return {strip, geometry_.family == kernel::Family::kS8 ? sums : nullptr,
            packer_.has_scales() ? scales : nullptr};
  }
  int64_t strip_bytes() const override { return panel_bytes_ + 2 * kRowBytes; }
  const std::byte* stored(int64_t, int64_t) const override { return nullptr; }

 private:
  PanelPacker packer_;
  int64_t panel_bytes_;
};

class PackedSource final : public PanelSource {
 public:
  explicit PackedSource(std::shared_ptr<const PackedWeights> weights)
      : PanelSource(weights->impl().geometry()), weights_(std::move(weights)) {}

  Panel panel(int64_t expert, int64_t index, std::byte*) const override {
    return weights_->impl().panel(expert, index);
  }
  int64_t strip_bytes() const override { return 0; }
  const std::byte* stored(int64_t expert, int64_t index) const override {
    return weights_->impl().panel(expert, index).codes;
  }

 private:
  std::shared_ptr<const PackedWeights> weights_;
};

}  // namespace

Result<std::unique_ptr<PanelSource>> raw_source(const LinearWeights& weights, bool gated, const char* name) {
  auto geometry = check_linear(weights, gated, name);
  if (!geometry) return geometry.status();
  return std::unique_ptr<PanelSource>(std::make_unique<RawSource>(weights, *geometry));
}

std::unique_ptr<PanelSource> packed_source(std::shared_ptr<const PackedWeights> weights) {
  return std::make_unique<PackedSource>(std::move(weights));
}

}  // namespace megamoe::pack
