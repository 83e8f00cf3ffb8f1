// moe_gating_top_k: scores, the best experts, their weights.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "format/bf16.h"
#include "format/float16.h"
#include "megamoe/routing.h"
#include "route/check.h"
#include "route/guard.h"
#include "route/row_access.h"
#include "route/scores.h"
#include "route/top_k.h"
#include "route/workers.h"

namespace megamoe {
namespace route {
namespace {

Result<MoeGatingTopKOutputs> plan_gating(const MoeGatingTopKArgs& args) {
  MEGAMOE_RETURN_IF_ERROR(check_real(args.logits, "logits"));
  MEGAMOE_RETURN_IF_ERROR(check_shape(args.logits, "logits", {-1, -1}));
  const int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  if (experts < 1 || experts > std::numeric_limits<int32_t>::max()) {
    return Status(Code::kInvalidArgument,
                  "logits has shape " + args.logits.shape_text() + ": expected 1 to 2147483647 columns");
  }
  if (args.bias.present()) {
    MEGAMOE_RETURN_IF_ERROR(check_real(args.bias, "bias"));
    MEGAMOE_RETURN_IF_ERROR(check_shape(args.bias, "bias", {experts}));
  }
  if (args.scoring != "softmax" && args.scoring != "sigmoid") {
    return wrong_value("scoring", args.scoring, "softmax or sigmoid");
  }
  if (args.n_group < 1 || experts % args.n_group != 0) {
    return wrong_value("n_group", args.n_group, "a divisor of the " + std::to_string(experts) + " experts");
  }
  if (args.topk_group < 1 || args.topk_group > args.n_group) {
    return wrong_value("topk_group", args.topk_group, "1 to n_group = " + std::to_string(args.n_group));
  }
  if (args.group_score != "top2_sum" && args.group_score != "max") {
    return wrong_value("group_score", args.group_score, "top2_sum or max");
  }
  const int64_t most = experts / args.n_group * args.topk_group;
  if (args.k < 1 || args.k > most) return wrong_value("k", args.k, "1 to " + std::to_string(most));
  if (!(std::fabs(args.routed_scaling_factor) <= std::numeric_limits<float>::max())) {
    return wrong_value("routed_scaling_factor", std::to_string(args.routed_scaling_factor),
                       "a finite float32");
  }
  auto weights = describe_output("weights", DType::kFloat32, {tokens, args.k});
  if (!weights) return weights.status();
  auto ids = describe_output("ids", DType::kInt32, {tokens, args.k});
  if (!ids) return ids.status();
  return MoeGatingTopKOutputs{*weights, *ids};
}

template <class T, class Convert>
void widen(const T* from, int64_t stride, int64_t n, float* to, Convert convert) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = convert(from[i * stride]);
  }
}

/// n elements from `data` on as float.
void widen(const void* data, DType dtype, int64_t stride, int64_t n, float* to) {
  switch (dtype) {
    case DType::kFloat32:
      return widen(static_cast<const float*>(data), stride, n, to, [](float x) { return x; });
    case DType::kFloat16:
      return widen(static_cast<const uint16_t*>(data), stride, n, to, format::f16_to_float);
    default:
      return widen(static_cast<const uint16_t*>(data), stride, n, to, format::bf16_to_float);
  }
}

float number_or_least(float x) {
  return x == x ? x : kNoScore;
}

/// Chooses for one token after another; one per thread.
class Gate {
 public:
  Gate(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs)
      : args_(args),
        outputs_(outputs),
        experts_(args.logits.shape[1]),
        group_size_(experts_ / args.n_group),
        softmax_(args.scoring == "softmax"),
        by_sum_(args.n_group > 1 && args.group_score == "top2_sum"),
        all_scores_(softmax_ || args.bias.present() || by_sum_),
        factor_(static_cast<float>(args.routed_scaling_factor)),
        logits_(static_cast<size_t>(experts_)),
        scores_(static_cast<size_t>(experts_)),
        best_(args.k),
        best_groups_(args.topk_group) {
    if (args.bias.present()) {
      bias_.resize(static_cast<size_t>(experts_));
      keys_.resize(static_cast<size_t>(experts_));
      widen(args.bias.data, args.bias.dtype, args.bias.strides[0], experts_, bias_.data());
    }
    if (args.n_group > 1) group_scores_.resize(static_cast<size_t>(args.n_group));
  }

  void token(int64_t token) {
    widen(row_at(args_.logits, token), args_.logits.dtype, args_.logits.strides[1], experts_, logits_.data());
    for (float& x : logits_) x = number_or_least(x);
    if (all_scores_) {
      softmax_ ? softmax(logits_.data(), experts_, scores_.data())
               : sigmoid(logits_.data(), experts_, scores_.data());
    }
    // Without a bias the order of the logits is that of the scores, before any rounding.
    const float* keys = logits_.data();
    if (!bias_.empty()) {
      for (int64_t e = 0; e < experts_; ++e) keys_[e] = number_or_least(scores_[e] + bias_[e]);
      keys = keys_.data();
    }
    choose(keys);
    write(token);
  }

 private:
  void choose(const float* keys) {
    best_.clear();
    if (group_scores_.empty()) return best_.offer(keys, 0, experts_);
    // Only sums need scores: the largest key stands where the largest score does.
    const float* const values = by_sum_ && bias_.empty() ? scores_.data() : keys;
    for (int64_t g = 0; g < args_.n_group; ++g) group_scores_[g] = group_score(values + g * group_size_);
    best_groups_.clear();
    best_groups_.offer(group_scores_.data(), 0, args_.n_group);
    groups_.assign(best_groups_.ids().begin(), best_groups_.ids().end());
    std::sort(groups_.begin(), groups_.end());
    for (int64_t g : groups_) best_.offer(keys, g * group_size_, (g + 1) * group_size_);
  }

  /// The largest value, or the sum of the two largest.
  float group_score(const float* values) const {
    if (!by_sum_) return *std::max_element(values, values + group_size_);
    float first = values[0], second = kNoScore;
    if (group_size_ == 1) return first;
    for (int64_t i = 1; i < group_size_; ++i) {
      second = std::max(second, std::min(first, values[i]));
      first = std::max(first, values[i]);
    }
    return number_or_least(first + second);
  }

  void write(int64_t token) {
    float* const weights = static_cast<float*>(outputs_.weights.data) + token * args_.k;
    int32_t* const ids = static_cast<int32_t*>(outputs_.ids.data) + token * args_.k;
    std::copy(best_.ids().begin(), best_.ids().end(), ids);
    if (all_scores_) {
      for (int64_t i = 0; i < args_.k; ++i) weights[i] = scores_[ids[i]];
    } else {
      for (int64_t i = 0; i < args_.k; ++i) weights[i] = logits_[ids[i]];
      sigmoid(weights, args_.k, weights);
    }
    if (args_.renormalize) {
      float sum = 0;
      for (int64_t i = 0; i < args_.k; ++i) sum += weights[i];
      if (sum > 0) {
        for (int64_t i = 0; i < args_.k; ++i) weights[i] /= sum;
      }
    }
    for (int64_t i = 0; i < args_.k; ++i) weights[i] *= factor_;
  }

  const MoeGatingTopKArgs& args_;
  const MoeGatingTopKOutputs& outputs_;
  int64_t experts_, group_size_;
  bool softmax_, by_sum_, all_scores_;
  float factor_;
  std::vector<float> logits_, scores_, bias_, keys_, group_scores_;
  std::vector<int64_t> groups_;
  TopK best_, best_groups_;
};

Status run(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs,
           const RoutingOptions& options) {
  auto wanted = plan_gating(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.logits, "logits"));
  MEGAMOE_RETURN_IF_ERROR(check_memory(args.bias, "bias"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.weights, wanted->weights, "weights"));
  MEGAMOE_RETURN_IF_ERROR(check_output(outputs.ids, wanted->ids, "ids"));
  auto workers = Workers::create(options);
  if (!workers) return workers.status();
  constexpr int64_t kElementsPerThread = 1 << 15;
  const int64_t tokens = args.logits.shape[0];
  const int parts = workers->parts(tokens, kElementsPerThread / args.logits.shape[1] + 1);
  std::vector<Gate> gates(static_cast<size_t>(parts), Gate(args, outputs));
  workers->run(parts, [&](int part) {
    const int64_t end = Workers::begin(tokens, parts, part + 1);
    for (int64_t t = Workers::begin(tokens, parts, part); t < end; ++t) gates[part].token(t);
  });
  return Status::ok();
}

}  // namespace
}  // namespace route

Result<MoeGatingTopKOutputs> moe_gating_top_k_outputs(const MoeGatingTopKArgs& args) {
  return route::plan_gating(args);
}

Status moe_gating_top_k(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs,
                        const RoutingOptions& options) {
  return route::guarded("moe_gating_top_k", [&] { return route::run(args, outputs, options); });
}

}  // namespace megamoe
