// The two sources of panels: raw weights packed on demand, and packed weights.
#include "pack/panel_source.h"

#include "pack/packed_weights.h"
#include "pack/panel_packer.h"

namespace megamoe::pack {
namespace {

constexpr int64_t kRowBytes = kernel::kPanelColumns * 4;

/// Decodes a stored panel of a product with groups to a strip and puts what it gave into `panel`.
void decode(const kernel::RowOps& ops, const Geometry& g, const void* stored, std::byte* strip,
            Panel& panel) {
  kernel::DecodePanel d{stored, g.k, strip};
  d.form = g.form;
  d.scales = reinterpret_cast<float*>(strip + kernel::panel_bytes(g.family, g.k));
  d.sums = reinterpret_cast<int32_t*>(strip + kernel::panel_bytes(g.family, g.k) + g.group_rows_bytes());
  panel.codes = strip;
  panel.group_scales = d.scales;
  if (g.family == kernel::Family::kS8) panel.column_sums = d.sums;
  ops.decode[static_cast<int>(g.family)][static_cast<int>(g.code)](d);
}

class RawSource final : public PanelSource {
 public:
  RawSource(const LinearWeights& weights, const Geometry& geometry, const kernel::RowOps& ops)
      : PanelSource(geometry), packer_(weights, geometry), ops_(ops) {}

  /// The strip, then sums, scales and biases, then the stored form of coded weights.
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
    Panel panel{strip, geometry_.has_sums() ? sums : nullptr,
                geometry_.has_channel_scales() ? scales : nullptr,
                geometry_.has_bias && geometry_.bias_is_shift() ? bias : nullptr,
                geometry_.has_added_bias                           ? added
                : geometry_.has_bias && !geometry_.bias_is_shift() ? bias
                                                                   : nullptr};
    if (geometry_.decoded_by_ranges()) {
      panel.codes = stored;
    } else if (coded) {
      decode(ops_, geometry_, stored, strip, panel);
    }
    return panel;
  }
  int64_t strip_bytes() const override {
    return geometry_.strip_bytes() + kColumnRows * kRowBytes + geometry_.stored_bytes();
  }
  const std::byte* stored(int64_t, int64_t) const override { return nullptr; }

 private:
  PanelPacker packer_;
  const kernel::RowOps& ops_;
};

class PackedSource final : public PanelSource {
 public:
  PackedSource(std::shared_ptr<const PackedWeights> weights, const kernel::RowOps& ops)
      : PanelSource(weights->impl().geometry()), weights_(std::move(weights)), ops_(ops) {}

  Panel panel(int64_t expert, int64_t index, std::byte* strip) const override {
    Panel panel = weights_->impl().panel(expert, index);
    if (geometry_.group() != 0) decode(ops_, geometry_, panel.codes, strip, panel);
    return panel;
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
  const kernel::RowOps& ops_;
};

}  // namespace

Result<std::unique_ptr<PanelSource>> raw_source(const LinearWeights& weights, bool gated, const char* name,
                                                const kernel::RowOps& ops, const ExpectedSizes& expected) {
  auto geometry = check_linear(weights, gated, name, expected);
  if (!geometry) return geometry.status();
  return std::unique_ptr<PanelSource>(std::make_unique<RawSource>(weights, *geometry, ops));
}

std::unique_ptr<PanelSource> packed_source(std::shared_ptr<const PackedWeights> weights,
                                           const kernel::RowOps& ops) {
  return std::make_unique<PackedSource>(std::move(weights), ops);
}

}  // namespace megamoe::pack
