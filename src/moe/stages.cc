// Reads back what the stages of the last call left in memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "format/bf16.h"
#include "moe/plan.h"

namespace megamoe {
namespace {

// Codes and scales of one row, as numbers, appended to `codes` and `scales`.
class RowReader {
 public:
  RowReader(const kernel::RowOps& ops, int64_t n) : ops_(ops), values_(static_cast<size_t>(n)) {}

  void append(const moe::Codec& codec, const std::byte* row, const std::byte* row_scales,
              std::vector<float>& codes, std::vector<float>& scales) {
    const auto n = static_cast<int64_t>(values_.size());
    if (!codec.encodes()) {
      append_values(row, DType::kBFloat16, codes);
      scales.push_back(1.f);
    } else if (codec.decodes()) {
      // Under a scale of one the values are the codes.
      constexpr std::byte kOne{127};
      const std::vector<std::byte> ones(static_cast<size_t>(codec.scale_bytes(n)), kOne);
      ops_.dequantise[static_cast<int>(*codec.rule)]({row, ones.data(), n, 0, 0, values_.data()});
      codes.insert(codes.end(), values_.begin(), values_.end());
      const int64_t groups = quant::rule_info(*codec.rule).groups(n);
      for (int64_t g = 0; g < groups; ++g) {
        const int byte = static_cast<int>(row_scales[g]);
        scales.push_back(byte == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.f, byte - 127));
      }
    } else {
      append_values(row, DType::kInt8, codes);
      scales.push_back(*reinterpret_cast<const float*>(row_scales));
    }
  }

  void append_values(const std::byte* row, DType dtype, std::vector<float>& out) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      switch (dtype) {
        case DType::kBFloat16:
          out.push_back(format::bf16_to_float(reinterpret_cast<const uint16_t*>(row)[i]));
          break;
        case DType::kInt8:
          out.push_back(static_cast<float>(reinterpret_cast<const int8_t*>(row)[i]));
          break;
        default:
          out.push_back(reinterpret_cast<const float*>(row)[i]);
      }
    }
  }

 private:
  const kernel::RowOps& ops_;
  std::vector<float> values_;
};

}  // namespace

Result<Stages> MegaMoe::Impl::stages() const {
  const SymmBuffer::Impl& owner = buffer->impl();
  if (owner.destroyed) return Status(Code::kClosed, "the buffer was destroyed");
  if (!owner.completed) {
    return Status(Code::kInvalidArgument,
                  "stages: the last call of the buffer failed or there was none: expected a successful call");
  }
  Stages stages;
  const moe::ExpertPlan& plan = routed();
  if (plan.scenario == nullptr) return stages;
  int64_t rows = 0;
  for (const moe::Block& block : owner.blocks) {
    if (block.set == moe::kRouted) rows = std::max(rows, block.first_row + block.rows);
  }
  RowReader token(*ops, owner.config.hidden);
  RowReader inner(*ops, plan.linear2.geometry().k);
  const moe::Codec& requantise = *plan.scenario->requantise_codec;
  const moe::Workspace& work = owner.workspace;
  std::vector<float> result(static_cast<size_t>(owner.config.hidden));
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<size_t>(row);
    const comm::RowHome& home = *owner.homes(row);
    stages.home.insert(stages.home.end(), {home.rank, home.token, home.slot});
    token.append(
        *owner.codec, owner.pool(owner.layout.codes, owner.layout.code_stride(), row),
        owner.pool(owner.layout.scales, static_cast<size_t>(owner.layout.input.scale_row_bytes), row),
        stages.token_codes, stages.token_scales);
    const std::byte* activated = work.activated.data() + at * work.activated_row;
    inner.append_values(activated, plan.scenario->activated(), stages.activated);
    inner.append(requantise, requantise.encodes() ? work.codes.data() + at * work.codes_row : activated,
                 work.scales.data() + at * work.scales_row, stages.requantised, stages.requantised_scales);
    const std::byte* slot = owner.slot_row(home);
    if (owner.combine_codec == nullptr) {
      token.append_values(slot, DType::kBFloat16, stages.linear2);
    } else {
      ops->dequantise[static_cast<int>(*owner.combine_codec->rule)](
          {slot, slot + owner.slot_scales(), owner.config.hidden, 0, 0, result.data()});
      stages.linear2.insert(stages.linear2.end(), result.begin(), result.end());
    }
  }
  return stages;
}

}  // namespace megamoe
