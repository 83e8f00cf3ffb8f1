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
      : PanelSource(geometry), packer_(weights, geometry) {}

  /// Place for the strip, then sums, scales and biases, then the stored form of coded weights.
  Panel panel(int64_t expert, int64_t index, std::byte* strip) const override {
    std::byte* const rows = strip + geometry_.strip_bytes();
    auto* const sums = reinterpret_cast<int32_t*>(rows);
    auto* const scales = reinterpret_cast<float*>(rows + kRowBytes);
    auto* const bias = reinterpret_cast<float*>(rows + 2 * kRowBytes);
    auto* const added = reinterpret_cast<float*>(rows + 3 * kRowBytes);
    const bool coded = geometry_.code != kernel::WeightCode::kStrip;
    std::byte* const stored = coded ? rows + kColumnRows * kRowBytes : strip;
    packer_.pack(expert, index, 0, geometry_.k, stored, sums);
    if (geometry_.has_channel_scales()) packer_.pack_scales(expert, index, scales);
    if (geometry_.has_bias) packer_.pack_bias(expert, index, sums, bias);
    if (geometry_.has_added_bias) packer_.pack_added_bias(expert, index, added);
    return Panel{stored, geometry_.has_sums() ? sums : nullptr,
                 geometry_.has_channel_scales() ? scales : nullptr,
                 geometry_.has_bias && geometry_.bias_is_shift() ? bias : nullptr,
                 geometry_.has_added_bias                           ? added
                 : geometry_.has_bias && !geometry_.bias_is_shift() ? bias
                                                                    : nullptr};
  }
  int64_t strip_bytes() const override {
    return geometry_.strip_bytes() + kColumnRows * kRowBytes + geometry_.stored_bytes();
  }
  const std::byte* stored(int64_t, int64_t) const override { return nullptr; }

 private:
  PanelPacker packer_;
};

class PackedSource final : public PanelSource {
 public:
  explicit PackedSource(std::shared_ptr<const PackedWeights> weights)
      : PanelSource(weights->impl().geometry()), weights_(std::move(weights)) {}

  Panel panel(int64_t expert, int64_t index, std::byte* /*strip*/) const override {
    return weights_->impl().panel(expert, index);
  }
  int64_t strip_bytes() const override {
    return geometry_.code == kernel::WeightCode::kStrip ? 0 : geometry_.strip_bytes();
  }
  const std::byte* stored(int64_t expert, int64_t index) const override {
    return weights_->impl().panel(expert, index).codes;
  }
  void announce_rows(int64_t expert, int64_t index) const override {
    const Panel panel = weights_->impl().panel(expert, index);
    const void* const rows[] = {panel.column_sums, panel.column_scales, panel.column_shift,
                                panel.column_bias};
    for (const void* row : rows) {
      if (row == nullptr) continue;
      for (int64_t at = 0; at < kRowBytes; at += static_cast<int64_t>(base::kCacheLine)) {
        __builtin_prefetch(static_cast<const std::byte*>(row) + at);
      }
    }
  }

 private:
  std::shared_ptr<const PackedWeights> weights_;
};

}  // namespace

Result<std::unique_ptr<PanelSource>> raw_source(const LinearWeights& weights, bool gated, const char* name,
                                                const ExpectedSizes& expected) {
  auto geometry = check_linear(weights, gated, name, expected);
  if (!geometry) return geometry.status();
  return std::unique_ptr<PanelSource>(std::make_unique<RawSource>(weights, *geometry));
}

std::unique_ptr<PanelSource> packed_source(std::shared_ptr<const PackedWeights> weights) {
  return std::make_unique<PackedSource>(std::move(weights));
}

}  // namespace megamoe::pack
