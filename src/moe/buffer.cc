// Creation of a buffer, the exchange that opens a call and the leave that closes it.
#include "moe/buffer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "base/team.h"
#include "base/topology.h"
#include "comm/host_memory.h"
#include "kernel/default_isa.h"
#include "moe/agreement.h"
#include "moe/limits.h"
#include "moe/validate.h"

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
      plan_only(options.plan_only),
      threads(threads_in),
      isa(isa_in),
      experts_per_rank(layout_in.input.experts_per_rank),
      local_experts(moe::local_experts(config_in, group_in.size(), group_in.rank())),
      capacity(layout_in.input.capacity),
      layout(layout_in),
      team(threads_in),
      matrix(group_in.size(), config_in.num_experts),
      rows(layout_in.input),
      token_map(options.plan_only ? 0 : config_in.num_max_tokens_per_rank, config_in.num_topk,
                config_in.num_experts) {
  if (options.trace) trace.enable(threads, moe::TraceLog::kSpansPerThread);
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
  Result<Isa> isa = kernel::isa_of_call(options.isa);
  if (!isa) return isa.status();
  Result<const moe::Codec*> codec =
      moe::find_token_codec(config.dispatch_quant_mode, config.dispatch_quant_out_dtype);
  if (!codec) return codec.status();
  Result<comm::SymmLayout> layout = moe::plan_layout(config, group.size());
  if (!layout) return layout.status();

  MEGAMOE_RETURN_IF_ERROR(moe::check_buffer_size(config, *layout));
  // The tables of the routing are smaller than the segment: what passes here has room for them.
  if (!options.plan_only) MEGAMOE_RETURN_IF_ERROR(comm::check_host_memory(layout->total, group.size()));

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
  if (options.plan_only) return prepared;
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

Status SymmBuffer::Impl::callable() const {
  if (destroyed) return Status(Code::kClosed, "the buffer was destroyed");
  if (!plan_only) return Status::ok();
  return Status(Code::kUnsupported, "plan_only = true: expected a buffer with memory for calls");
}

Status SymmBuffer::Impl::exchange(const Status& local, int64_t tokens, const comm::LayerMark& layer) {
  trace.clear();
  completed = false;
  const moe::TraceScope scope(trace, 0, TraceSpan::Stage::kExchange);
  MEGAMOE_RETURN_IF_ERROR(callable());
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
  if (impl_->session != nullptr) impl_->session->close();
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
