// Reads back what the stages of the last call left in memory.
#include <algorithm>

#include "format/bf16.h"
#include "moe/plan.h"

namespace megamoe {
namespace {

float read_number(const std::byte* at, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kBFloat16:
      return format::bf16_to_float(reinterpret_cast<const uint16_t*>(at)[index]);
    case DType::kInt8:
      return static_cast<float>(reinterpret_cast<const int8_t*>(at)[index]);
    default:
      return reinterpret_cast<const float*>(at)[index];
  }
}

void append_row(std::vector<float>& out, const void* row, DType dtype, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out.push_back(read_number(static_cast<const std::byte*>(row), dtype, i));
}

}  // namespace

Result<Stages> MegaMoe::Impl::stages() const {
  const SymmBuffer::Impl& owner = buffer->impl();
  if (owner.destroyed) return Status(Code::kClosed, "the buffer was destroyed");
  if (!owner.completed) {
    return Status(Code::kInvalidArgument,
                  "stages: the last call of the buffer failed or there was none: expected a "
                  "successful call");
  }
  Stages stages;
  if (scenario == nullptr) return stages;
  int64_t rows = 0;
  for (const moe::Block& block : owner.blocks) rows = std::max(rows, block.first_row + block.rows);
  const int64_t width = linear2.geometry().k;
  const moe::Codec& requantise = *scenario->requantise_codec;
  const bool recoded = requantise.encodes();
  for (int64_t row = 0; row < rows; ++row) {
    const comm::RowHome& home = *owner.homes(row);
    stages.home.insert(stages.home.end(), {home.rank, home.token, home.slot});
    append_row(stages.token_codes, owner.pool(owner.layout.codes, owner.layout.code_stride(), row),
               owner.codec->codes(), owner.config.hidden);
    stages.token_scales.push_back(!owner.codec->encodes() ? 1.f
                                                          : *reinterpret_cast<const float*>(owner.pool(
                                                                owner.layout.scales, sizeof(float), row)));
    const std::byte* activated =
        owner.workspace.activated.data() + static_cast<size_t>(row) * owner.workspace.activated_row;
    append_row(stages.activated, activated, scenario->activated(), width);
    const std::byte* codes =
        owner.workspace.codes.data() + static_cast<size_t>(row) * owner.workspace.codes_row;
    append_row(stages.requantised, recoded ? codes : activated, requantise.codes(), width);
    stages.requantised_scales.push_back(
        recoded ? reinterpret_cast<const float*>(owner.workspace.scales.data())[row] : 1.f);
    append_row(stages.linear2, owner.slot_row(home), DType::kBFloat16, owner.config.hidden);
  }
  return stages;
}

}  // namespace megamoe
