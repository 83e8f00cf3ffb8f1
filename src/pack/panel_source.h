// Where the panels of one linear layer come from: packed memory, or raw weights packed into a strip on
// demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/memory.h"
#include "kernel/contract.h"
#include "megamoe/mega_moe.h"
#include "pack/weight_types.h"

namespace megamoe::pack {

/// One panel ready for a tile function.
struct Panel {
  const std::byte* codes;      ///< the stored panel: kernel::panel_bytes(family, k) bytes, 64-byte aligned,
                               ///< or codes that the product decodes
  const int32_t* column_sums;  ///< [32], s8 family with channel scales only, else null
  const float* column_scales;  ///< [32] in panel order, scenarios with channel scales only, else null
  const float* column_shift;   ///< [32] in panel order, what int4 adds before the row scale, or null
  const float* column_bias;    ///< [32] in panel order, or null
};

/// Rows of 32 numbers that a panel made from raw weights may have beside its codes.
inline constexpr int64_t kColumnRows = 4;

/// Geometry of a linear layer in panels.
struct Geometry {
  DType dtype = DType::kUndefined;
  kernel::Family family = kernel::Family::kBf16;
  kernel::WeightCode code = kernel::WeightCode::kStrip;
  ScaleKind scales = ScaleKind::kNone;
  kernel::GroupForm form;
  bool mx_groups = false;  ///< the product is one of codes, group by group, where the scales are MX
  bool has_bias = false;
  bool has_added_bias = false;  ///< beside a bias that is a shift, or alone
  int64_t experts = 0;
  int64_t k = 0;
  int64_t n = 0;           ///< columns as stored: 2I for a gated Linear1
  bool gated = false;      ///< panels pair the gate column of an output with its up column
  int64_t interleave = 0;  ///< gate columns that stand together before their up columns; 0 = all of them

  int64_t outputs() const { return gated ? n / 2 : n; }
  int outputs_per_panel() const { return gated ? kernel::kGatedColumns : kernel::kPanelColumns; }
  int64_t panels() const { return (outputs() + outputs_per_panel() - 1) / outputs_per_panel(); }
  /// Bytes of one stored panel, and of the strip it is decoded to.
  int64_t stored_bytes() const { return kernel::stored_panel_bytes(code, family, k, form); }
  int64_t strip_bytes() const { return kernel::panel_bytes(family, k) + 2 * group_rows_bytes(); }
  /// k per group of the product; 0 where it runs over the whole of K. E2M1 is multiplied as bfloat16 with the
  /// scales in its values, or as integers.
  int64_t group() const { return mx_groups ? kernel::kMxGroup : form.group; }
  /// Bytes of 32 floats for each group.
  int64_t group_rows_bytes() const {
    return group() == 0 ? 0 : kernel::groups_of(k, group()) * kernel::kPanelColumns * 4;
  }
  bool has_sums() const { return scales == ScaleKind::kChannel; }
  bool has_channel_scales() const { return scales == ScaleKind::kChannel; }
  /// The bias of int4 stands before the row scale: it makes up for what splitting an activation leaves out.
  bool bias_is_shift() const { return code == kernel::WeightCode::kInt4; }
  /// Rows of 32 floats that a stored panel has beside its codes: column sums, channel scales, biases.
  int64_t panel_rows() const {
    return (has_sums() ? 1 : 0) + (has_channel_scales() ? 1 : 0) + (has_bias ? 1 : 0) +
           (has_added_bias ? 1 : 0);
  }
  /// Memory of all packed panels. Panels of 4-bit codes fill half cache lines, so their end is rounded up.
  size_t packed_bytes() const {
    const auto count = static_cast<size_t>(experts * panels());
    return base::round_up(count * static_cast<size_t>(stored_bytes()), base::kCacheLine) +
           count * static_cast<size_t>(panel_rows()) * kernel::kPanelColumns * sizeof(float);
  }
  /// Stored column of panel column j (0..31), or -1 for padding.
  int64_t column(int64_t panel, int j) const {
    if (!gated) {
      const int64_t c = panel * kernel::kPanelColumns + j;
      return c < n ? c : -1;
    }
    const int64_t c = panel * kernel::kGatedColumns + j % kernel::kGatedColumns;
    if (c >= n / 2) return -1;
    const int64_t run = gate_run();
    return c / run * 2 * run + (j < kernel::kGatedColumns ? 0 : run) + c % run;
  }
  /// Neighbouring gate columns as stored.
  int64_t gate_run() const { return interleave == 0 ? n / 2 : interleave; }
};

class PanelSource {
 public:
  virtual ~PanelSource() = default;
  const Geometry& geometry() const { return geometry_; }
  /// The panel. `strip` is strip_bytes() bytes of the calling thread, 64-byte aligned: place for what the
  /// product decodes, and behind it for panels that are made on demand.
  virtual Panel panel(int64_t expert, int64_t index, std::byte* strip) const = 0;
  virtual int64_t strip_bytes() const = 0;
  /// The panel will be read soon: brings in what lies beside its codes.
  virtual void announce_rows(int64_t /*expert*/, int64_t /*index*/) const {}
  /// Address of the stored panel for prefetching, or null where panels are made on demand.
  virtual const std::byte* stored(int64_t expert, int64_t index) const = 0;
  /// Chooses the family that codes are decoded to, where there is a choice, and whether MX scales stay apart.
  void decode_to(kernel::Family family, bool mx_groups) {
    geometry_.mx_groups = mx_groups;
    if (geometry_.code != kernel::WeightCode::kStrip) geometry_.family = family;
  }

 protected:
  explicit PanelSource(const Geometry& geometry) : geometry_(geometry) {}
  Geometry geometry_;
};

/// Sizes that a linear layer must have; negative = any.
struct ExpectedSizes {
  int64_t experts = -1, k = -1, n = -1;
};
Status check_sizes(const Geometry& geometry, const std::string& name, const ExpectedSizes& expected);

/// Checks weights, then their sizes, then scales ("weight1[3] has shape ...: expected ...") and derives the
/// geometry. `name` is "weight1" or "weight2"; scales are named "weight_scales1" / "weight_scales2".
Result<Geometry> check_linear(const LinearWeights& weights, bool gated, const char* name,
                              const ExpectedSizes& expected = {});

/// Whether both linear layers belong to the same experts: sizes, types and kinds of scales.
Status check_pair(const Geometry& first, const std::string& first_name, const Geometry& second,
                  const std::string& second_name);

/// Panels of raw weights, packed on demand. The tensors must outlive the source.
Result<std::unique_ptr<PanelSource>> raw_source(const LinearWeights& weights, bool gated, const char* name,
                                                const ExpectedSizes& expected = {});
/// Panels of packed weights.
std::unique_ptr<PanelSource> packed_source(std::shared_ptr<const PackedWeights> weights);

}  // namespace megamoe::pack
