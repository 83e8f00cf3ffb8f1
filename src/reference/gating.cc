// moe_gating_top_k in plain loops with scores in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

#include "base/fp_env.h"
#include "megamoe/reference.h"
#include "reference/element.h"
#include "reference/routing_rows.h"

namespace megamoe::reference {
namespace {

constexpr double kLeast = -std::numeric_limits<double>::infinity();

double number_or_least(double x) {
  return std::isnan(x) ? kLeast : x;
}

std::vector<double> softmax(const std::vector<double>& logits) {
  double most = kLeast;
  for (double x : logits) most = std::max(most, x);
  std::vector<double> scores;
  double sum = 0;
  for (double x : logits) {
    scores.push_back(std::isinf(most) ? (x == most ? 1.0 : 0.0) : std::exp(x - most));
    sum += scores.back();
  }
  for (double& score : scores) score /= sum;
  return scores;
}

std::vector<double> sigmoid(const std::vector<double>& logits) {
  std::vector<double> scores;
  for (double x : logits) scores.push_back(1.0 / (1.0 + std::exp(-x)));
  return scores;
}

/// The allowed index with the largest key that is not taken yet, the lowest one of equals.
int64_t best(const std::vector<double>& keys, const std::vector<bool>& allowed) {
  int64_t found = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(keys.size()); ++i) {
    if (allowed[i] && (found < 0 || keys[i] > keys[found])) found = i;
  }
  return found;
}

void choose(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs, int64_t token) {
  const int64_t experts = args.logits.shape[1], size = experts / args.n_group;
  std::vector<double> logits;
  for (int64_t e = 0; e < experts; ++e) {
    logits.push_back(number_or_least(read_float(args.logits, offset(args.logits, token, e))));
  }
  const std::vector<double> scores = args.scoring == "softmax" ? softmax(logits) : sigmoid(logits);
  std::vector<double> biased = scores;
  for (int64_t e = 0; args.bias.present() && e < experts; ++e) {
    biased[e] = number_or_least(static_cast<float>(scores[e]) + read_float(args.bias, offset(args.bias, e)));
  }
  std::vector<bool> allowed(static_cast<size_t>(experts), args.n_group == 1);
  if (args.n_group > 1) {
    std::vector<double> group_scores;
    for (int64_t g = 0; g < args.n_group; ++g) {
      double first = kLeast, second = kLeast;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) {
        if (biased[e] > first) {
          second = first;
          first = biased[e];
        } else {
          second = std::max(second, biased[e]);
        }
      }
      group_scores.push_back(size == 1 ? first : number_or_least(first + second));
      if (args.group_score == "max") {
        const std::vector<double>& keys = args.bias.present() ? biased : logits;
        group_scores.back() = *std::max_element(keys.begin() + g * size, keys.begin() + (g + 1) * size);
      }
    }
    std::vector<bool> open(static_cast<size_t>(args.n_group), true);
    for (int64_t i = 0; i < args.topk_group; ++i) {
      const int64_t g = best(group_scores, open);
      open[g] = false;
      for (int64_t e = g * size; e < (g + 1) * size; ++e) allowed[e] = true;
    }
  }
  std::vector<double> weights;
  auto* const ids = static_cast<int32_t*>(outputs.ids.data) + token * args.k;
  double sum = 0;
  for (int64_t i = 0; i < args.k; ++i) {
    const int64_t e = best(args.bias.present() ? biased : logits, allowed);
    allowed[e] = false;
    ids[i] = static_cast<int32_t>(e);
    weights.push_back(scores[e]);
    sum += scores[e];
  }
  for (int64_t i = 0; i < args.k; ++i) {
    if (args.renormalize && sum > 0) weights[i] /= sum;
    static_cast<float*>(outputs.weights.data)[token * args.k + i] =
        static_cast<float>(weights[i] * args.routed_scaling_factor);
  }
}

}  // namespace

Status moe_gating_top_k(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs) {
  const base::DefaultFpEnv fp_env;
  auto wanted = moe_gating_top_k_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.weights, wanted->weights, "weights"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.ids, wanted->ids, "ids"));
  try {
    for (int64_t token = 0; token < args.logits.shape[0]; ++token) choose(args, outputs, token);
    return Status::ok();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "moe_gating_top_k has no memory for one token");
  }
}

}  // namespace megamoe::reference
