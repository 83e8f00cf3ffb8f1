// A layer checked once and bound to kernels: everything a call needs besides its tensors.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "base/split.h"
#include "kernel/registry.h"
#include "megamoe/mega_moe.h"
#include "moe/buffer.h"
#include "moe/scenarios.h"
#include "moe/tuning.h"
#include "moe/validate.h"
#include "pack/panel_source.h"

namespace megamoe {

namespace moe {

/// One linear layer ready to run.
struct LinearPlan {
  const kernel::Gemm* gemm = nullptr;
  kernel::DecodeFunction decode = nullptr;  ///< where the product decodes stored panels by ranges of k
  std::unique_ptr<pack::PanelSource> source;
  Blocking blocking;

  const pack::Geometry& geometry() const { return source->geometry(); }
  /// Tiles that `rows` rows are split into, evenly, never taller than the kernel's register tile.
  int64_t tiles(int64_t rows) const { return base::ceil_div(rows, gemm->max_rows); }
  /// First row of tile t of `rows` rows; tile t ends where tile t + 1 starts.
  static int64_t tile_begin(int64_t rows, int64_t tiles, int64_t t) {
    return base::EvenSplit{rows, tiles}.begin(t);
  }
  /// Whether the tiles of `rows` rows read the stored panel themselves.
  bool reads_codes(int64_t rows) const {
    const int64_t most = gemm->coded_rows[static_cast<int>(geometry().code)];
    if (decode == nullptr || gemm->tile == nullptr) return decode != nullptr;
    return rows <= blocking.coded_rows && (rows <= most || most >= gemm->max_rows);
  }
  /// Panels that a product takes at once.
  int64_t panels_at_once(int64_t rows) const {
    const bool pairs = reads_codes(rows) && rows <= gemm->paired_rows[static_cast<int>(geometry().code)];
    return pairs && source->stored(0, 0) != nullptr ? 2 : 1;
  }
  /// Whether the first of the tiles that read codes leaves to the others what it made of them or of scales.
  bool keeps(int64_t rows) const {
    const int64_t least = gemm->kept_rows[static_cast<int>(geometry().code)];
    return reads_codes(rows) && least != 0 && rows >= least &&
           kernel::kept_bytes(kept_range()) <= geometry().strip_bytes();
  }
  /// k of one range, in whole groups: a decoded one stays in the first-level cache while all tiles read it.
  int64_t range(int64_t rows) const {
    if (keeps(rows)) return kept_range();
    return decode == nullptr || reads_codes(rows) ? geometry().k : decoded_range();
  }
  /// Kernel of a block of `rows` rows and what it reads: "s8_s32_14x32_avx512_vnni on codes".
  std::string kernel_text(int64_t rows) const;
  /// Bytes between the packed tiles of a block.
  size_t tile_stride() const {
    return base::round_up(gemm->packed_bytes(gemm->max_rows, geometry().k), base::kCacheLine);
  }

 private:
  int64_t decoded_range() const {
    const int64_t row_bytes = kernel::kPanelColumns * static_cast<int64_t>(sizeof(uint32_t));
    const int64_t range = blocking.strip_bytes / row_bytes * kernel::k_per_dword(geometry().family);
    const int64_t group = std::max<int64_t>(geometry().group(), 1);
    return std::max(range / group, int64_t{1}) * group;
  }
  /// Equal ranges where codes are kept. Tiles that wait for nothing but products read them from the
  /// second-level cache as fast, and every range costs the start of a tile.
  int64_t kept_range() const {
    if (geometry().family == kernel::Family::kBf16) return geometry().k;
    constexpr int64_t kStrips = 4;
    const int64_t ranges = base::ceil_div(geometry().k, kStrips * decoded_range());
    return std::min(geometry().k,
                    base::ceil_div(geometry().k, ranges * kernel::kRangeStep) * kernel::kRangeStep);
  }
};

/// The experts of one set of rows, bound to kernels.
struct ExpertPlan {
  const Scenario* scenario = nullptr;  ///< null where there are no experts
  LinearPlan linear1, linear2;
  int64_t experts = 0;
};

/// Rough time of a product of `rows` rows on one thread, to compare blocks.
double product_ns(const LinearPlan& linear, int64_t rows);
/// Panels one piece covers when a block has `rows` rows: long enough to hide the claim, short enough to share
/// out unless it is of an early block, and no product cut short.
int64_t panels_per_piece(const LinearPlan& linear, int64_t rows, int threads, bool early);

}  // namespace moe

class MegaMoe::Impl {
 public:
  static Result<std::unique_ptr<Impl>> create(std::shared_ptr<SymmBuffer> buffer, Layer layer);

  Status run(const CallArgs& args);
  Result<Stages> stages() const;
  std::vector<std::pair<std::string, std::string>> description() const;

  std::shared_ptr<SymmBuffer> buffer;
  Layer layer;
  moe::ActivationPlan activation;
  comm::LayerMark mark{};  ///< what all ranks of a call must have in common
  moe::ExpertPlan experts[moe::kRowSets];
  moe::ChosenBlocking blocking;
  const kernel::RowOps* ops = nullptr;
  base::MemoryHabits memory;  ///< decide how weights are announced

  const moe::ExpertPlan& routed() const { return experts[moe::kRouted]; }
  const moe::ExpertPlan& shared() const { return experts[moe::kShared]; }

 private:
  Status plan_routed(const SymmBuffer::Impl& owner);
  Status plan_shared(SymmBuffer::Impl& owner);
};

}  // namespace megamoe
