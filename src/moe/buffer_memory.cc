// The private memory of a buffer: rows between the stages, strips and rows of each thread, shared experts.
#include <algorithm>
#include <vector>

#include "moe/buffer.h"
#include "pack/panel_source.h"

namespace megamoe {
namespace moe {
namespace {

// The kernels of a level.
std::vector<const kernel::Gemm*> gemms_of(Isa isa) {
  std::vector<const kernel::Gemm*> gemms;
  for (const kernel::Family family : {kernel::Family::kBf16, kernel::Family::kS8}) {
    gemms.push_back(&kernel::gemm_for(family, isa));
    for (int code = 0; code < kernel::kWeightCodeCount; ++code) {
      gemms.push_back(&kernel::group_gemm_for(family, static_cast<kernel::WeightCode>(code), isa));
    }
  }
  return gemms;
}

// Packed activations of one block, the largest of all kernels' needs.
size_t packed_block_bytes(int64_t k, Isa isa) {
  size_t most = 0;
  for (const kernel::Gemm* gemm : gemms_of(isa)) {
    const size_t tiles = static_cast<size_t>(base::ceil_div(kBlockRows, gemm->max_rows));
    most = std::max(most, tiles * base::round_up(gemm->packed_bytes(gemm->max_rows, k), base::kCacheLine));
  }
  return most;
}

// The longest strip made from a panel, with what raw weights need behind it: rows of column data and the
// stored form.
size_t strip_bytes(int64_t k) {
  using kernel::Family;
  using kernel::WeightCode;
  const kernel::GroupForm widest{kernel::kGroupSizes[0], DType::kFloat32, true};
  int64_t stored = kernel::stored_panel_bytes(WeightCode::kE4M3, Family::kBf16, k);
  for (const WeightCode code : {WeightCode::kInt4Groups, WeightCode::kE4M3Groups}) {
    stored = std::max(stored, kernel::stored_panel_bytes(code, Family::kBf16, k, widest));
  }
  const int64_t groups = kernel::groups_of(k, kernel::kGroupSizes[0]);
  const int64_t rows =
      (2 * groups + pack::kColumnRows) * kernel::kPanelColumns * static_cast<int64_t>(sizeof(float));
  return static_cast<size_t>(kernel::panel_bytes(Family::kBf16, k) + rows + stored);
}

}  // namespace

Result<Workspace> Workspace::make(int64_t rows, int64_t blocks, const BufferConfig& config, Isa isa,
                                  bool keep_stages) {
  const int64_t hidden = config.hidden;
  const int64_t inner = 2 * config.intermediate_hidden;  // gelu keeps the whole width of Linear1
  const auto row_of = [](int64_t n, size_t element) {
    return base::round_up(static_cast<size_t>(n) * element, base::kCacheLine);
  };
  Workspace workspace;
  workspace.packed_block1 = packed_block_bytes(hidden, isa);
  workspace.packed_block2 = packed_block_bytes(inner, isa);
  workspace.activated_row = row_of(inner, sizeof(float));
  workspace.codes_row = row_of(inner, sizeof(uint16_t));
  workspace.scales_row = row_of(base::ceil_div(inner, kernel::kMxGroup) + 8, sizeof(uint8_t));
  workspace.factors = row_of(std::max(hidden, inner), sizeof(uint16_t));
  workspace.operand_row =
      workspace.factors +
      row_of(kernel::groups_of(std::max(hidden, inner), kernel::kMxGroup) + 1, sizeof(float));
  workspace.linear1_row = keep_stages ? static_cast<size_t>(inner) : 0;
  workspace.linear2_row = keep_stages ? static_cast<size_t>(hidden) : 0;
  const auto n = static_cast<size_t>(rows);
  const std::pair<base::Pages*, size_t> parts[] = {
      {&workspace.packed1, static_cast<size_t>(blocks) * workspace.packed_block1},
      {&workspace.packed2, static_cast<size_t>(blocks) * workspace.packed_block2},
      {&workspace.activated, n * workspace.activated_row},
      {&workspace.codes, n * workspace.codes_row},
      {&workspace.scales, n * workspace.scales_row},
      {&workspace.operands, n * workspace.operand_row},
      {&workspace.linear1, n * workspace.linear1_row * sizeof(float)},
      {&workspace.linear2, n * workspace.linear2_row * sizeof(uint16_t)},
  };
  for (const auto& [pages, bytes] : parts) {
    Result<base::Pages> made = base::Pages::allocate(bytes, /*huge=*/true);
    if (!made) return made.status();
    *pages = std::move(*made);
  }
  return workspace;
}

}  // namespace moe

Result<moe::Workspace> SymmBuffer::Impl::make_workspace(int64_t rows, int64_t most_blocks) const {
  if (rooms() > 0) return moe::Workspace::make(rooms() * moe::kBlockRows, rooms(), config, isa, false);
  return moe::Workspace::make(rows, most_blocks, config, isa, keep_stages);
}

Status SymmBuffer::Impl::allocate() {
  Result<moe::Workspace> made = make_workspace(capacity, layout.max_blocks());
  if (!made) return made.status();
  workspace = std::move(*made);
  MEGAMOE_RETURN_IF_ERROR(reserve_shared(0));

  const int64_t widest = std::max(config.hidden, 2 * config.intermediate_hidden);
  int max_rows = 0;
  for (const kernel::Gemm* gemm : moe::gemms_of(isa)) max_rows = std::max(max_rows, gemm->max_rows);
  const auto topk = static_cast<size_t>(config.num_topk);
  const auto wide = [&](size_t element) { return static_cast<size_t>(widest) * element; };
  const size_t sizes[] = {
      static_cast<size_t>(std::max<int64_t>(max_rows, moe::kBlockRows)) * kernel::kPanelColumns *
          sizeof(float),
      moe::strip_bytes(widest),
      std::max(wide(sizeof(float)), static_cast<size_t>(max_rows) * kernel::kPanelColumns * sizeof(uint16_t)),
      wide(sizeof(uint16_t)),
      wide(sizeof(uint8_t)),
      combine_codec == nullptr && config.combine_comm_mode == 0 ? 0 : topk * layout_row_bytes(),
      (topk + moe::kMaxSharedExperts) * (sizeof(void*) + sizeof(float)),
      topk * (sizeof(void*) + sizeof(float)),
      topk * sizeof(int64_t),
  };
  size_t each = 0;
  for (const size_t size : sizes) each += base::round_up(size, base::kCacheLine);
  each = base::round_up(each, 4096) + base::kCacheLine;
  Result<base::Pages> pages = base::Pages::allocate(each * static_cast<size_t>(threads), /*huge=*/false);
  if (!pages) return pages.status();
  scratch_pages = std::move(*pages);
  scratch.resize(static_cast<size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) {
    std::byte* next = scratch_pages.data() + each * static_cast<size_t>(thread);
    moe::Scratch& s = scratch[static_cast<size_t>(thread)];
    std::byte** const parts[] = {&s.tile,  &s.strip, &s.row,   &s.codes,  &s.scales,
                                 &s.slots, &s.terms, &s.group, &s.members};
    for (size_t i = 0; i < std::size(parts); ++i) {
      *parts[i] = next;
      next += base::round_up(sizes[i], base::kCacheLine);
    }
  }
  return Status::ok();
}

Status SymmBuffer::Impl::reserve_shared(int64_t experts) {
  if (schedule != nullptr && experts <= shared.experts) return Status::ok();
  const int64_t tokens = config.num_max_tokens_per_rank;
  const int64_t blocks = experts * (base::ceil_div(tokens, moe::kBlockRows) + 1);
  moe::SharedRows made;
  if (experts > 0) {
    Result<moe::Workspace> work = make_workspace(experts * tokens, blocks);
    if (!work) return work.status();
    made.workspace = std::move(*work);
    made.experts = experts;
    made.code_stride = layout_row_bytes();  // bfloat16, the widest code
    made.scale_stride = base::round_up(
        static_cast<size_t>(base::ceil_div(config.hidden, kernel::kMxGroup) + 1), base::kCacheLine);
    const auto rows_of = static_cast<size_t>(experts * tokens);
    const std::pair<base::Pages*, size_t> parts[] = {
        {&made.codes, rows_of * made.code_stride},
        {&made.scales, rows_of * made.scale_stride},
        {&made.homes, rows_of * sizeof(comm::RowHome)},
        {&made.slots, rows_of * layout_row_bytes()},
    };
    for (const auto& [pages, bytes] : parts) {
      Result<base::Pages> part = base::Pages::allocate(bytes, /*huge=*/false);
      if (!part) return part.status();
      *pages = std::move(*part);
    }
    if (!plan_only) made.arrived.resize(static_cast<size_t>(blocks));
  }
  const int64_t all_blocks = plan_only ? 0 : layout.max_blocks() + blocks;
  schedule =
      std::make_unique<moe::Schedule>(all_blocks, plan_only ? 0 : config.num_max_tokens_per_rank, rooms());
  this->blocks.reserve(static_cast<size_t>(all_blocks));
  block_pieces.reserve(static_cast<size_t>(all_blocks));
  shared = std::move(made);
  return Status::ok();
}

}  // namespace megamoe
