// Creation of a buffer, the exchange that opens a call and the leave that closes it.
#include "moe/buffer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "base/isa_choice.h"
#include "base/team.h"
#include "base/topology.h"
#include "comm/host_memory.h"
#include "comm/segment_header.h"
#include "moe/agreement.h"
#include "moe/limits.h"
#include "moe/validate.h"
#include "pack/panel_source.h"

namespace megamoe {
namespace moe {

Result<comm::SymmLayout> plan_layout(const BufferConfig& config, int64_t ranks) {
  Result<const Codec*> codec = find_token_codec(config.dispatch_quant_mode, config.dispatch_quant_out_dtype);
  if (!codec) return codec.status();
  Result<int64_t> rows = capacity(config, ranks);
  if (!rows) return rows.status();
  comm::LayoutInput input;
  input.ranks = ranks;
  input.experts = config.num_experts;
  input.experts_per_rank = experts_per_rank(config, ranks);
  input.max_tokens = config.num_max_tokens_per_rank;
  input.topk = config.num_topk;
  input.capacity = *rows;
  input.block_rows = kBlockRows;
  input.code_row_bytes = (*codec)->row_bytes(config.hidden);
  input.scale_row_bytes = (*codec)->scale_bytes(config.hidden);
  Result<const Codec*> combine = find_combine_codec(config.combine_quant_mode);
  if (!combine) return combine.status();
  input.slot_row_bytes =
      *combine == nullptr
          ? config.hidden * static_cast<int64_t>(sizeof(uint16_t))
          : static_cast<int64_t>(
                base::round_up(static_cast<size_t>((*combine)->row_bytes(config.hidden)), base::kCacheLine)) +
                (*combine)->scale_bytes(config.hidden);
  return comm::SymmLayout::make(input);
}

namespace {

// The kernels of a level.
std::array<const kernel::Gemm*, 2 * kernel::kFamilyCount> gemms_of(Isa isa) {
  using kernel::Family;
  return {&kernel::gemm_for(Family::kBf16, isa), &kernel::gemm_for(Family::kS8, isa),
          &kernel::group_gemm_for(Family::kBf16, isa), &kernel::group_gemm_for(Family::kS8, isa)};
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

comm::Settings settings_of(const BufferConfig& config, const comm::SymmLayout& layout) {
  return {
      {"num_experts", std::to_string(config.num_experts)},
      {"num_max_tokens_per_rank", std::to_string(config.num_max_tokens_per_rank)},
      {"num_topk", std::to_string(config.num_topk)},
      {"hidden", std::to_string(config.hidden)},
      {"intermediate_hidden", std::to_string(config.intermediate_hidden)},
      {"max_recv_token_num", std::to_string(config.max_recv_token_num)},
      {"dispatch_quant_mode", std::to_string(config.dispatch_quant_mode)},
      {"dispatch_quant_out_dtype", dtype_name(config.dispatch_quant_out_dtype)},
      {"combine_quant_mode", std::to_string(config.combine_quant_mode)},
      {"comm_alg", config.comm_alg},
      {"topk_weights_type", std::to_string(config.topk_weights_type)},
      {"topo_type", std::to_string(config.topo_type)},
      {"rank_num_per_server", std::to_string(config.rank_num_per_server)},
      {"combine_comm_mode", std::to_string(config.combine_comm_mode)},
      {"profile", config.profile},
      {"ccl_buffer_size", std::to_string(config.ccl_buffer_size != 0 ? config.ccl_buffer_size
                                                                     : static_cast<int64_t>(layout.total))},
  };
}

Status check_buffer_size(const BufferConfig& config, const comm::SymmLayout& layout) {
  const auto needed = static_cast<int64_t>(layout.total);
  if (config.ccl_buffer_size == 0 || config.ccl_buffer_size >= needed) return Status::ok();
  return Status(Code::kInvalidArgument, "ccl_buffer_size = " + std::to_string(config.ccl_buffer_size) +
                                            ": expected 0 (automatic) or at least " + std::to_string(needed) +
                                            " bytes");
}

int choose_threads(const BufferOptions& options, int ranks) {
  if (options.threads > 0) return options.threads;
  return std::max(1, base::topology().usable_threads() / ranks);
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

SymmBuffer::Impl::Impl(const Group& group_in, const BufferConfig& config_in, const BufferOptions& options,
                       const moe::Codec* codec_in, const moe::Codec* combine_codec_in,
                       const comm::SymmLayout& layout_in, int threads_in, Isa isa_in)
    : group(group_in),
      config(config_in),
      profile(*moe::find_profile(config_in.profile)),
      codec(codec_in),
      combine_codec(combine_codec_in),
      pass_through(
          moe::passes_codes_through(config_in.dispatch_quant_mode, config_in.dispatch_quant_out_dtype)),
      keep_stages(options.keep_stages),
      threads(threads_in),
      isa(isa_in),
      experts_per_rank(layout_in.input.experts_per_rank),
      local_experts(moe::local_experts(config_in, group_in.size(), group_in.rank())),
      capacity(layout_in.input.capacity),
      layout(layout_in),
      team(threads_in),
      matrix(group_in.size(), config_in.num_experts),
      rows(layout_in.input),
      token_map(config_in.num_max_tokens_per_rank, config_in.num_topk, config_in.num_experts) {
  if (options.trace) trace.enable(threads, size_t{1} << 15);
}

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
    made.arrived.resize(static_cast<size_t>(blocks));
  }
  const int64_t all_blocks = layout.max_blocks() + blocks;
  schedule = std::make_unique<moe::Schedule>(all_blocks, config.num_max_tokens_per_rank, rooms());
  this->blocks.reserve(static_cast<size_t>(all_blocks));
  block_pieces.reserve(static_cast<size_t>(all_blocks));
  shared = std::move(made);
  return Status::ok();
}

Result<std::unique_ptr<SymmBuffer::Impl>> SymmBuffer::Impl::prepare(const Group& group,
                                                                    const BufferConfig& config,
                                                                    const BufferOptions& options) {
  MEGAMOE_RETURN_IF_ERROR(moe::check_config(config, group.size()));
  if (config.intermediate_hidden == 0) {  // the check allows it, for sizes do not depend on it
    return Status(Code::kInvalidArgument, "intermediate_hidden = 0: expected the width between the layers");
  }
  MEGAMOE_RETURN_IF_ERROR(base::check_threads(options.threads));
  if (options.deadline.count() <= 0) {
    return Status(Code::kInvalidArgument,
                  "deadline = " + std::to_string(options.deadline.count()) + " ms: expected a positive time");
  }
  Result<Isa> isa = base::isa_of_call(options.isa);
  if (!isa) return isa.status();
  Result<const moe::Codec*> codec =
      moe::find_token_codec(config.dispatch_quant_mode, config.dispatch_quant_out_dtype);
  if (!codec) return codec.status();
  Result<comm::SymmLayout> layout = moe::plan_layout(config, group.size());
  if (!layout) return layout.status();

  MEGAMOE_RETURN_IF_ERROR(moe::check_buffer_size(config, *layout));
  // The tables of the routing are smaller than the segment: what passes here has room for them.
  MEGAMOE_RETURN_IF_ERROR(comm::check_host_memory(layout->total, group.size()));

  const int threads = moe::choose_threads(options, group.size());
  Result<const moe::Codec*> combine_codec = moe::find_combine_codec(config.combine_quant_mode);
  if (!combine_codec) return combine_codec.status();
  std::unique_ptr<Impl> impl(
      new Impl(group, config, options, *codec, *combine_codec, *layout, threads, *isa));
  MEGAMOE_RETURN_IF_ERROR(impl->allocate());
  return impl;
}

Result<std::unique_ptr<SymmBuffer::Impl>> SymmBuffer::Impl::create(const Group& group,
                                                                   const BufferConfig& config,
                                                                   const BufferOptions& options) {
  Result<std::unique_ptr<Impl>> prepared = [&]() -> Result<std::unique_ptr<Impl>> {
    try {
      return prepare(group, config, options);
    } catch (const std::bad_alloc&) {
      return Status(Code::kOutOfMemory, "the memory of the buffer could not be reserved");
    }
  }();
  if (!prepared) return refuse_creation(group, prepared.status(), options);
  Impl& impl = **prepared;
  comm::SessionOptions session_options;
  session_options.deadline = options.deadline;
  // Spinning helps only while every rank has cores of its own.
  const bool crowded = impl.threads * group.size() > base::topology().usable_threads();
  session_options.spin = std::chrono::microseconds(crowded ? 2 : 100);
  Result<std::unique_ptr<comm::Session>> session =
      comm::Session::open(group, impl.layout.total, moe::settings_of(config, impl.layout), session_options);
  if (!session) return session.status();
  impl.session = std::move(*session);
  return prepared;
}

Status SymmBuffer::Impl::exchange(const Status& local, int64_t tokens, const comm::LayerMark& layer) {
  trace.clear();
  completed = false;
  const moe::TraceScope scope(trace, 0, TraceSpan::Stage::kExchange);
  if (destroyed) return Status(Code::kClosed, "the buffer was destroyed");
  Result<uint64_t> call = session->begin_call();
  if (!call) return call.status();
  comm::LocalRecord record;
  record.status = local;
  record.tokens = tokens;
  record.layer = layer;
  if (!local.is_ok()) token_map.clear();
  record.counts = token_map.counts();
  Status verdict = comm::exchange(*session, layout, record, matrix);
  if (verdict.is_ok()) verdict = moe::agree_on_call(matrix, profile);
  // A wait that a failure or a destroy() cut short is no verdict: peers may hold another one and wait for
  // rows.
  if (!verdict.is_ok() && session->broken().is_ok() && !destroyed) session->end_call();
  return verdict;
}

void SymmBuffer::Impl::leave(int64_t tokens) {
  std::byte* own = session->segment(session->rank());
  std::memset(own + layout.arrived, 0, static_cast<size_t>(layout.max_blocks()) * sizeof(uint32_t));
  std::memset(own + layout.done, 0, static_cast<size_t>(tokens) * sizeof(uint32_t));
  session->end_call();
}

SymmBuffer::SymmBuffer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SymmBuffer::~SymmBuffer() {
  destroy();
}

Result<std::shared_ptr<SymmBuffer>> SymmBuffer::create(const Group& group, const BufferConfig& config,
                                                       const BufferOptions& options) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(group, config, options);
  if (!impl) return impl.status();
  return std::shared_ptr<SymmBuffer>(new SymmBuffer(std::move(*impl)));
}

Status SymmBuffer::refuse_creation(const Group& group, const Status& why, const BufferOptions& options) {
  comm::SessionOptions session_options;
  if (options.deadline.count() > 0) session_options.deadline = options.deadline;
  if (why.is_ok()) {
    const Status missing(Code::kInvalidArgument, "why = ok: expected the error of the creation");
    return comm::Session::refuse(group, missing, session_options);
  }
  return comm::Session::refuse(group, why, session_options);
}

void SymmBuffer::destroy() {
  if (impl_->destroyed.exchange(true)) return;
  impl_->session->close();
  // The waits of a call that another thread is in end now; its memory stays until it has. A child of a fork
  // has no such thread.
  while (impl_->fork_generation == base::fork_generation() && impl_->busy.load()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  impl_->session.reset();
  impl_->workspace = {};
}

int SymmBuffer::rank() const {
  return impl_->group.rank();
}
int SymmBuffer::world_size() const {
  return impl_->group.size();
}
int SymmBuffer::threads() const {
  return impl_->threads;
}
Isa SymmBuffer::isa() const {
  return impl_->isa;
}
const BufferConfig& SymmBuffer::config() const {
  return impl_->config;
}
int64_t SymmBuffer::experts_per_rank() const {
  return impl_->local_experts;
}
int64_t SymmBuffer::capacity() const {
  return impl_->capacity;
}
int64_t SymmBuffer::ccl_buffer_size() const {
  return static_cast<int64_t>(impl_->layout.total);
}
std::vector<TraceSpan> SymmBuffer::trace() const {
  return impl_->trace.spans();
}

Status SymmBuffer::refuse_call(const Status& why) {
  const moe::CallGuard guard(impl_->busy);
  if (!guard.taken())
    return Status(Code::kInvalidArgument, "the buffer is in a call: expected one call at a time");
  // The peers are in the call already: a refusal without an error must still end it.
  if (why.is_ok()) {
    return impl_->exchange(Status(Code::kInvalidArgument, "why = ok: expected the error of the call"), 0, {});
  }
  return impl_->exchange(why, 0, {});
}

Result<int64_t> mega_moe_ccl_buffer_size(int64_t ep_world_size, const BufferConfig& config) {
  MEGAMOE_RETURN_IF_ERROR(moe::check_config(config, ep_world_size));
  Result<comm::SymmLayout> layout = moe::plan_layout(config, ep_world_size);
  if (!layout) return layout.status();
  return static_cast<int64_t>(layout->total);
}

}  // namespace megamoe
