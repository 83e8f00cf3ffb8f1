// moe_init_routing_v3 in the words of its document: sort the slots by expert, take rows in that order.
#include <algorithm>
#include <limits>
#include <map>
#include <new>
#include <string>

#include "base/fp_env.h"
#include "megamoe/reference.h"
#include "reference/element.h"
#include "reference/routing_rows.h"

namespace megamoe::reference {
namespace {

/// Rule of each quant_mode; the older rule of modes 2 and 3.
const std::map<int64_t, std::string_view> kRules = {
    {0, "int8_static"},
    {1, "int8_per_token"},
    {2, "mx_round_up_e5m2"},
    {3, "mx_round_up_e4m3"},
    {4, "fp8_group128_e5m2"},
    {5, "fp8_group128_e4m3"},
    {6, "hif8_cast"},
    {7, "hif8_per_tensor"},
    {8, "hif8_per_token"},
    {9, "mx_floor_subnormal_e2m1"},
    {11, "fp8_block128_e5m2"},
    {12, "fp8_block128_e4m3"},
    {13, "int4_dynamic"},
    {14, "fp8_group128_amax_e5m2"},
    {15, "fp8_group128_amax_e4m3"},
    {16, "mx_round_up_amax_e5m2"},
    {17, "mx_round_up_amax_e4m3"},
};
const std::map<int64_t, std::string_view> kFloorRules = {{2, "mx_floor_e5m2"}, {3, "mx_floor_e4m3"}};

class InitRouting {
 public:
  InitRouting(const MoeInitRoutingArgs& args, const MoeInitRoutingOutputs& outputs)
      : args_(args),
        out_(outputs),
        slots_(read_slots(args.expert_idx)),
        topk_(args.expert_idx.shape[1]),
        start_(args.active_expert_range.empty() ? 0 : args.active_expert_range[0]),
        end_(args.active_expert_range.empty() ? args.expert_num : args.active_expert_range[1]) {}

  Status run() {
    for (size_t f = 0; f < slots_.size(); ++f) {
      if (slots_[f] >= -1 && slots_[f] < args_.expert_num) continue;
      const int64_t slot = static_cast<int64_t>(f);
      return Status(Code::kInvalidArgument, "expert_idx[" + std::to_string(slot / topk_) + "][" +
                                                std::to_string(slot % topk_) +
                                                "] = " + std::to_string(slots_[f]) +
                                                ": expected -1 (slot not used) or an expert in [0, " +
                                                std::to_string(args_.expert_num) + ")");
    }
    // Ids below the range come last, in their original order.
    std::vector<int64_t> keys = slots_;
    for (int64_t& key : keys) {
      if (key < start_) key = std::numeric_limits<int64_t>::max();
    }
    order_ = stable_order(keys);
    write_counts();
    clear(out_.expanded_x);
    if (out_.expanded_scale.present()) clear(out_.expanded_scale);
    return args_.drop_pad_mode == 1 ? drop_pad() : dropless();
  }

 private:
  bool active(int64_t id) const { return id >= start_ && id < end_; }

  Status dropless() {
    auto* const index = static_cast<int32_t*>(out_.expanded_row_idx.data);
    const int64_t rows = out_.expanded_x.shape[0];
    for (size_t i = 0; i < order_.size(); ++i) {
      const int64_t slot = order_[i];
      const int64_t position = static_cast<int64_t>(i);
      if (args_.row_idx_type == 1) {
        index[position] = static_cast<int32_t>(slot);
      } else {
        index[slot] = active(slots_[slot]) ? static_cast<int32_t>(position) : -1;
      }
      if (active(slots_[slot]) && position < rows) MEGAMOE_RETURN_IF_ERROR(write_row(slot, position));
    }
    return Status::ok();
  }

  Status drop_pad() {
    auto* const index = static_cast<int32_t*>(out_.expanded_row_idx.data);
    std::vector<int64_t> used(static_cast<size_t>(args_.expert_num));
    for (int64_t slot : order_) {
      index[slot] = -1;
      const int64_t expert = slots_[slot];
      if (expert < 0 || used[expert] == args_.expert_capacity) continue;
      const int64_t row = expert * args_.expert_capacity + used[expert]++;
      index[slot] = static_cast<int32_t>(row);
      MEGAMOE_RETURN_IF_ERROR(write_row(slot, row));
    }
    return Status::ok();
  }

  Status write_row(int64_t slot, int64_t row) {
    const int64_t token = slot / topk_;
    const TensorView& scale = args_.scale;
    if (args_.quant_mode == -1) {
      copy_row(args_.x, token, out_.expanded_x, row);
      if (scale.dtype == DType::kFloat32) {
        static_cast<float*>(out_.expanded_scale.data)[row] = element<float>(scale, offset(scale, token));
      } else if (scale.present()) {
        auto* const to = static_cast<uint8_t*>(out_.expanded_scale.data);
        for (int64_t c = 0; c < scale.shape[1] * 2; ++c) {
          to[row * scale.shape[1] * 2 + c] =
              element<uint8_t>(scale, offset(scale, token, c / 2) + c % 2 * scale.strides[2]);
        }
      }
      return Status::ok();
    }
    QuantiseArguments arguments;
    if (args_.quant_mode == 0 || args_.quant_mode == 7) arguments.scale = element<float>(scale, 0);
    if (args_.quant_mode == 0) arguments.offset = element<float>(args_.offset, 0);
    if ((args_.quant_mode == 1 || args_.quant_mode == 13) && scale.present()) {
      const int64_t smooth_row = scale.shape[0] == 1 ? 0 : slots_[slot] - start_;
      for (int64_t h = 0; h < scale.shape[1]; ++h) {
        arguments.smooth.push_back(element<float>(scale, offset(scale, smooth_row, h)));
      }
    }
    const auto& rules = args_.mx_scale == "floor" ? kFloorRules : kRules;
    return quantise_row_to(rules.at(args_.quant_mode), args_.x, token, arguments, out_.expanded_x,
                           out_.expanded_scale, row);
  }

  void write_counts() {
    if (!args_.expert_tokens_num_flag) return;
    clear(out_.expert_tokens_count_or_cumsum);
    auto* out = static_cast<int64_t*>(out_.expert_tokens_count_or_cumsum.data);
    int64_t sum = 0;
    for (int64_t expert = start_; expert < end_; ++expert) {
      const int64_t count = std::count(slots_.begin(), slots_.end(), expert);
      sum += count;
      if (args_.expert_tokens_num_type == 0) *out++ = sum;
      if (args_.expert_tokens_num_type == 1) *out++ = count;
      if (args_.expert_tokens_num_type == 2 && count > 0) {
        *out++ = expert;
        *out++ = count;
      }
    }
  }

  const MoeInitRoutingArgs& args_;
  const MoeInitRoutingOutputs& out_;
  std::vector<int64_t> slots_;
  int64_t topk_, start_, end_;
  std::vector<int64_t> order_;
};

}  // namespace

Status moe_init_routing_v3(const MoeInitRoutingArgs& args, const MoeInitRoutingOutputs& outputs) {
  const base::DefaultFpEnv fp_env;
  auto wanted = moe_init_routing_v3_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.expanded_x, wanted->expanded_x, "expanded_x"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.expanded_row_idx, wanted->expanded_row_idx, "expanded_row_idx"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.expert_tokens_count_or_cumsum,
                                     wanted->expert_tokens_count_or_cumsum, "expert_tokens_count_or_cumsum"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.expanded_scale, wanted->expanded_scale, "expanded_scale"));
  try {
    return InitRouting(args, outputs).run();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "moe_init_routing_v3 has no memory for its work space");
  }
}

}  // namespace megamoe::reference
