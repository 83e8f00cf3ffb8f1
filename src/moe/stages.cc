// Reads back what the stages of the last call left in memory.
#include <algorithm>
#include <cmath>
#include <limits>

#include "format/bf16.h"
#include "format/float8_e8m0.h"
#include "moe/plan.h"

namespace megamoe {
namespace {

// Appends rows of codes, or of values, as numbers.
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
      const quant::RuleInfo& rule = quant::rule_info(*codec.rule);
      const std::vector<std::byte> ones(static_cast<size_t>(codec.scale_bytes(n)), kOne);
      const std::vector<float> one(static_cast<size_t>(rule.scale_columns(n)), 1.0f);
      const void* units = codec.is_mx() ? static_cast<const void*>(ones.data()) : one.data();
      ops_.dequantise[static_cast<int>(*codec.rule)]({row, units, n, 0, 0, values_.data()});
      codes.insert(codes.end(), values_.begin(), values_.end());
      for (int64_t g = 0; g < rule.groups(n); ++g) {
        scales.push_back(codec.is_mx() ? format::e8m0_to_float(static_cast<uint8_t>(row_scales[g]))
                                       : reinterpret_cast<const float*>(row_scales)[g]);
      }
    } else {
      append_values(row, DType::kInt8, codes);
      scales.push_back(*reinterpret_cast<const float*>(row_scales));
    }
  }

  void append_decoded(const moe::Codec& codec, const std::byte* row, const std::byte* row_scales,
                      std::vector<float>& out) {
    ops_.dequantise[static_cast<int>(*codec.rule)](
        {row, row_scales, static_cast<int64_t>(values_.size()), 0, 0, values_.data()});
    out.insert(out.end(), values_.begin(), values_.end());
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

// Where one row of a set lies, as its token arrived.
struct TokenPlace {
  int64_t row;
  const comm::RowHome* home;
  const std::byte* codes;
  const std::byte* scales;
};

// The stages of a set of rows, row after row.
struct SetReader {
  const moe::ExpertPlan& plan;
  const moe::Workspace& work;
  const moe::Codec& codec;
  RowReader token, inner;

  SetReader(const kernel::RowOps& ops, const moe::ExpertPlan& experts, const moe::Workspace& workspace,
            const moe::Codec& token_codec, int64_t hidden)
      : plan(experts),
        work(workspace),
        codec(token_codec),
        token(ops, hidden),
        inner(ops, plan.linear2.geometry().k) {}

  // Everything but Linear2; what passed through memory that other blocks have taken over only where all keep
  // theirs.
  void append(const TokenPlace& at, StageRows& out) {
    const auto row = static_cast<size_t>(at.row);
    out.home.insert(out.home.end(), {at.home->rank, at.home->token, at.home->slot});
    token.append(codec, at.codes, at.scales, out.token_codes, out.token_scales);
    if (!work.keeps_stages()) return;
    const moe::Codec& requantise = *plan.scenario->requantise_codec;
    const float* const kept = work.linear1_values(at.row);
    out.linear1.insert(out.linear1.end(), kept, kept + plan.linear1.geometry().n);
    const std::byte* activated = work.activated.data() + row * work.activated_row;
    inner.append_values(activated, plan.scenario->activated(), out.activated);
    inner.append(requantise, requantise.encodes() ? work.codes.data() + row * work.codes_row : activated,
                 work.scales.data() + row * work.scales_row, out.requantised, out.requantised_scales);
  }
};

void read_routed(const SymmBuffer::Impl& owner, const moe::ExpertPlan& plan, const kernel::RowOps& ops,
                 Stages& stages) {
  int64_t rows = 0;
  for (const moe::Block& block : owner.blocks) {
    if (block.set == moe::kRouted) rows = std::max(rows, block.first_row + block.rows);
  }
  SetReader reader(ops, plan, owner.workspace, *owner.codec, owner.config.hidden);
  const auto scale_stride = static_cast<size_t>(owner.layout.input.scale_row_bytes);
  for (int64_t row = 0; row < rows; ++row) {
    const comm::RowHome& home = *owner.homes(row);
    reader.append({row, &home, owner.pool(owner.layout.codes, owner.layout.code_stride(), row),
                   owner.pool(owner.layout.scales, scale_stride, row)},
                  stages);
    const std::byte* slot = owner.slot_row(home);
    if (owner.combine_codec == nullptr) {
      reader.token.append_values(slot, DType::kBFloat16, stages.linear2);
      reader.token.append_values(slot, DType::kBFloat16, stages.returned);
      continue;
    }
    reader.token.append_decoded(*owner.combine_codec, slot, slot + owner.slot_scales(), stages.returned);
    if (!owner.keep_stages) continue;
    reader.token.append_values(reinterpret_cast<const std::byte*>(owner.workspace.linear2_values(row)),
                               DType::kBFloat16, stages.linear2);
  }
}

// Tokens that take no part pass the shared experts too, but nobody sees their rows.
void read_shared(const SymmBuffer::Impl& owner, const moe::ExpertPlan& plan, const kernel::RowOps& ops,
                 StageRows& stages) {
  const moe::SharedRows& memory = owner.shared;
  const moe::Codec& codec = *plan.scenario->token_codec;
  int64_t rows = 0;
  for (const moe::Block& block : owner.blocks) {
    if (block.set == moe::kShared) rows = std::max(rows, block.first_row + block.rows);
  }
  SetReader reader(ops, plan, memory.workspace, codec, owner.config.hidden);
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<size_t>(row);
    const comm::RowHome& home = reinterpret_cast<const comm::RowHome*>(memory.homes.data())[at];
    if (!owner.token_map.active(home.token)) continue;
    reader.append({row, &home, memory.codes.data() + at * memory.code_stride,
                   memory.scales.data() + at * memory.scale_stride},
                  stages);
    reader.token.append_values(owner.shared_slot_row(home.token, home.slot), DType::kBFloat16,
                               stages.linear2);
  }
}

}  // namespace

Result<Stages> MegaMoe::Impl::stages() const {
  const SymmBuffer::Impl& owner = buffer->impl();
  if (owner.destroyed) return Status(Code::kClosed, "the buffer was destroyed");
  if (!owner.completed) {
    return Status(Code::kInvalidArgument,
                  "stages: the last call of the buffer failed or there was none: expected a successful call");
  }
  Stages stages;
  if (routed().scenario != nullptr) read_routed(owner, routed(), *ops, stages);
  if (shared().scenario != nullptr) read_shared(owner, shared(), *ops, stages.shared);
  return stages;
}

}  // namespace megamoe
