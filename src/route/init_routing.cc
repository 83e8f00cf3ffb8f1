// moe_init_routing_v3: sort the slots by expert, write the row indices and counts, move the rows.
#include <algorithm>
#include <vector>

#include "megamoe/routing.h"
#include "route/check.h"
#include "route/guard.h"
#include "route/init_routing_plan.h"
#include "route/rows.h"
#include "route/sort.h"

namespace megamoe {
namespace route {
namespace {

Status check_tensors(const MoeInitRoutingArgs& args, const InitRoutingPlan& plan,
                     const MoeInitRoutingOutputs& outputs) {
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.x, "x"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.expert_idx, "expert_idx"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.scale, "scale"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.offset, "offset"));
  const MoeInitRoutingOutputs& wanted = plan.outputs;
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.expanded_x, wanted.expanded_x, "expanded_x"));
  MEGAMOE_RETURN_IF_ERROR(
      check_output(outputs.expanded_row_idx, wanted.expanded_row_idx, "expanded_row_idx"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.expert_tokens_count_or_cumsum,
                                       wanted.expert_tokens_count_or_cumsum,
                                       "expert_tokens_count_or_cumsum"));
  return check_output(outputs.expanded_scale, wanted.expanded_scale, "expanded_scale");
}

Status check_ids(const MoeInitRoutingArgs& args, const IdView& ids, Workers& workers) {
  const IdRange range = id_range(ids, workers);
  if (range.least >= -1 && range.most < args.expert_num) return Status::ok();
  const IdAt wrong = first_outside(ids, -1, args.expert_num - 1);
  return wrong_value(element_name("expert_idx", 2, wrong.slot / ids.columns(), wrong.slot % ids.columns()),
                     wrong.id,
                     "-1 (slot not used) or an expert in [0, " + std::to_string(args.expert_num) + ")");
}

/// Slots are sorted by buckets: experts from `start` on, or, where there are far more of them than slots,
/// those that occur. Counts of all would then be most of the memory that is needed.
class Buckets {
 public:
  Buckets(const IdView& ids, const InitRoutingPlan& plan, int64_t expert_num)
      : start_(plan.start), count_(expert_num - plan.start), active_(plan.end - plan.start) {
    constexpr int64_t kFewExperts = 1 << 16, kExpertsPerSlot = 4;
    if (plan.capacity > 0 || count_ <= std::max(kFewExperts, kExpertsPerSlot * ids.count())) return;
    for (int64_t slot = 0; slot < ids.count(); ++slot)
      occurring_.push_back(static_cast<int32_t>(ids.at(slot)));
    buckets_ = occurring_;
    std::sort(occurring_.begin(), occurring_.end());
    occurring_.erase(std::unique(occurring_.begin(), occurring_.end()), occurring_.end());
    occurring_.erase(occurring_.begin(), position_of(start_));
    for (int32_t& id : buckets_) {
      id = id < start_ ? -1 : static_cast<int32_t>(position_of(id) - occurring_.begin());
    }
    sparse_ = true;
    count_ = static_cast<int64_t>(occurring_.size());
    active_ = position_of(plan.end) - occurring_.begin();
  }

  int64_t active() const { return active_; }
  CountingSort sort(const IdView& ids, Workers& workers) const {
    if (!sparse_) return CountingSort(ids, start_, count_ + 1, workers);
    const auto slots = static_cast<int64_t>(buckets_.size());
    return CountingSort(IdView(TensorView(buckets_.data(), DType::kInt32, {slots})), 0, count_ + 1, workers);
  }
  int64_t expert(int64_t bucket) const { return sparse_ ? occurring_[bucket] : start_ + bucket; }

 private:
  std::vector<int32_t>::const_iterator position_of(int64_t id) const {
    return std::lower_bound(occurring_.begin(), occurring_.end(), id);
  }

  int64_t start_, count_, active_;
  bool sparse_ = false;
  std::vector<int32_t> occurring_;  ///< experts from `start_` on that have slots, ascending
  std::vector<int32_t> buckets_;    ///< of every slot, -1 below `start_`
};

/// `counts` of the active buckets, for the experts from `start` on.
void write_counts(int64_t type, int64_t start, const Buckets& buckets, std::span<const int64_t> counts,
                  const TensorRef& output) {
  auto* const out = static_cast<int64_t*>(output.data);
  int64_t* const end = out + output.elements();
  int64_t* at = out;
  int64_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const int64_t expert = buckets.expert(static_cast<int64_t>(i));
    if (type == 2) {
      *at++ = expert;
    } else {
      int64_t* const own = out + (expert - start);
      std::fill(at, own, type == 0 ? sum : 0);
      at = own;
    }
    sum += counts[i];
    *at++ = type == 0 ? sum : counts[i];
  }
  std::fill(at, end, type == 0 ? sum : 0);
}

/// Rows that no slot goes to.
std::vector<RowRange> unused_rows(const InitRoutingPlan& plan, std::span<const int64_t> counts) {
  std::vector<RowRange> ranges;
  int64_t used = 0;
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    used += counts[expert];
    if (plan.capacity == 0 || counts[expert] >= plan.capacity) continue;
    const int64_t first = static_cast<int64_t>(expert) * plan.capacity;
    ranges.push_back({first + counts[expert], first + plan.capacity});
  }
  if (plan.capacity == 0 && used < plan.rows) ranges.push_back({used, plan.rows});
  return ranges;
}

float first_element(const TensorView& tensor) {
  return tensor.present() ? *static_cast<const float*>(tensor.data) : 0.0f;
}

Status run(const MoeInitRoutingArgs& args, const MoeInitRoutingOutputs& outputs,
           const RoutingOptions& options) {
  auto plan = InitRoutingPlan::create(args);
  if (!plan) return plan.status();
  MEGAMOE_RETURN_IF_ERROR(check_tensors(args, *plan, outputs));
  auto workers = Workers::create(options);
  if (!workers) return workers.status();
  const IdView ids(args.expert_idx);
  MEGAMOE_RETURN_IF_ERROR(check_ids(args, ids, *workers));

  const Buckets buckets(ids, *plan, args.expert_num);
  CountingSort sort = buckets.sort(ids, *workers);
  const std::span<const int64_t> counts = sort.counts().first(static_cast<size_t>(buckets.active()));
  const std::vector<RowRange> unused = unused_rows(*plan, counts);
  auto* const row_idx = static_cast<int32_t*>(outputs.expanded_row_idx.data);
  const bool scatter = args.row_idx_type == 1;
  std::vector<int32_t> places(scatter ? static_cast<size_t>(plan->slots) : 0);
  int32_t* const to = scatter ? places.data() : row_idx;

  const bool per_expert = args.scale.dims == 2 && args.scale.shape[0] != 1;
  const bool scalar = plan->mode.rule != nullptr && plan->mode.rule->takes(quant::RuleInfo::kScale);
  const bool smooth = plan->mode.rule != nullptr && plan->mode.rule->takes(quant::RuleInfo::kSmooth);
  RowMove move;
  move.x = args.x;
  move.topk = plan->topk;
  move.to = to;
  move.limit = plan->rows;
  move.mode = plan->mode;
  if (scalar) move.scale = first_element(args.scale);
  move.offset = first_element(args.offset);
  if (smooth) move.smooth = args.scale;
  if (smooth && per_expert) move.experts = &ids;
  move.first_expert = plan->start;
  if (plan->mode.rule == nullptr) move.row_scales = args.scale;
  move.rows = outputs.expanded_x.data;
  move.scales = outputs.expanded_scale.data;

  sort.place({buckets.active(), plan->capacity}, to, scatter ? row_idx : nullptr, *workers);
  if (args.expert_tokens_num_flag) {
    write_counts(args.expert_tokens_num_type, plan->start, buckets, counts,
                 outputs.expert_tokens_count_or_cumsum);
  }
  move_rows(move, *workers);
  clear_rows(move, unused, *workers);
  return Status::ok();
}

}  // namespace
}  // namespace route

Status moe_init_routing_v3(const MoeInitRoutingArgs& args, const MoeInitRoutingOutputs& outputs,
                           const RoutingOptions& options) {
  return route::guarded("moe_init_routing_v3", [&] { return route::run(args, outputs, options); });
}

}  // namespace megamoe
