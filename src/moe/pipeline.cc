// One call of a planned layer: checks, exchange, the parallel region, the leave.
#include "moe/agreement.h"
#include "moe/call.h"

namespace megamoe {
namespace moe {
namespace {

void write_token_counts(const SymmBuffer::Impl& owner, const TensorRef& out) {
  if (!out.present()) return;
  const int64_t first_expert = owner.group.rank() * owner.experts_per_rank;
  for (int64_t local = 0; local < owner.local_experts; ++local) {
    static_cast<int32_t*>(out.data)[local * out.strides[0]] =
        static_cast<int32_t>(owner.rows.total(first_expert + local));
  }
}

}  // namespace
}  // namespace moe

Status MegaMoe::Impl::run(const CallArgs& args) {
  SymmBuffer::Impl& owner = buffer->impl();
  const moe::CallGuard guard(owner.busy);
  if (!guard.taken()) {
    return Status(Code::kInvalidArgument, "sym_buffer is in a call: expected one call at a time");
  }
  MEGAMOE_RETURN_IF_ERROR(owner.callable());  // before anything is written into tables that it may lack
  Status local = moe::check_call(args, owner.config, owner.local_experts);
  if (local.is_ok()) local = moe::check_attributes(args, owner.group.size(), buffer->ccl_buffer_size());
  if (local.is_ok()) {
    local = owner.token_map.build(
        args.topk_ids, args.x_active_mask.present() ? args.x_active_mask : TensorView(),
        {owner.config.num_experts, !moe::allows(owner.profile, moe::Parameter::kRepeatedExperts),
         owner.config.profile});
  }
  MEGAMOE_RETURN_IF_ERROR(
      owner.exchange(local, local.is_ok() ? args.x.shape[0] : 0, moe::with_call(mark, args)));
  owner.rows.build(owner.matrix, owner.group.rank());
  moe::Call call(*this, args);
  MEGAMOE_RETURN_IF_ERROR(call.run());
  moe::write_token_counts(owner, args.expert_token_nums);
  owner.leave(args.x.shape[0]);
  owner.completed = true;
  return Status::ok();
}

}  // namespace megamoe
