// moe_token_permute, moe_token_unpermute and their gradients in plain loops.
#include <new>
#include <string_view>

#include "base/fp_env.h"
#include "megamoe/reference.h"
#include "reference/element.h"
#include "reference/routing_rows.h"

namespace megamoe::reference {
namespace {

std::string_view permute_rule(int64_t quant_mode, bool floor) {
  if (quant_mode == 2) return floor ? "mx_floor_e5m2" : "mx_round_up_e5m2";
  if (quant_mode == 3) return floor ? "mx_floor_e4m3" : "mx_round_up_e4m3";
  return "mx_floor_subnormal_e2m1";
}

Status permute(const MoeTokenPermuteArgs& args, const MoeTokenPermuteOutputs& outputs) {
  const std::vector<int64_t> indices = read_slots(args.indices);
  const int64_t topk = args.indices.dims > 1 ? args.indices.shape[1] : 1;
  for (size_t f = 0; f < indices.size(); ++f) {
    if (indices[f] >= 0 && indices[f] < INT32_MAX) continue;
    return Status(Code::kInvalidArgument,
                  "indices = " + std::to_string(indices[f]) + ": expected an index in [0, 2147483646]");
  }
  const std::vector<int64_t> order = stable_order(indices);
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i);
    static_cast<int32_t*>(outputs.sorted_indices.data)[order[i]] = static_cast<int32_t>(row);
    if (row >= outputs.permuted_tokens.shape[0]) continue;
    const int64_t token = order[i] / topk;
    if (args.quant_mode == -1) {
      copy_row(args.tokens, token, outputs.permuted_tokens, row);
    } else {
      MEGAMOE_RETURN_IF_ERROR(quantise_row_to(permute_rule(args.quant_mode, args.mx_scale == "floor"),
                                              args.tokens, token, {}, outputs.permuted_tokens,
                                              outputs.expanded_scale, row));
    }
  }
  return Status::ok();
}

/// Element h of the sum over a token's slots: multiply, then add, in slot order.
float slot_sum(const TensorView& rows, const std::vector<int64_t>& index, int64_t token, int64_t topk,
               const TensorView& probs, int64_t h) {
  float sum = 0;
  for (int64_t k = 0; k < topk; ++k) {
    const int64_t row = index[token * topk + k];
    if (row < 0 || row >= rows.shape[0]) continue;
    const float value = read_float(rows, offset(rows, row, h));
    if (probs.present()) {
      const float prob = read_float(probs, offset(probs, token, k));
      if (prob != 0) sum += value * prob;
    } else {
      sum = k == 0 ? value : sum + value;
    }
  }
  return sum;
}

void sum_slots(const TensorView& rows, const TensorView& indices, int64_t topk, const TensorView& probs,
               const TensorRef& out) {
  const std::vector<int64_t> index = read_slots(indices);
  for (int64_t token = 0; token < out.shape[0]; ++token) {
    for (int64_t h = 0; h < out.shape[1]; ++h) {
      write_float(out, offset(out, token, h), slot_sum(rows, index, token, topk, probs, h));
    }
  }
}

void unpermute_grad(const MoeTokenUnpermuteGradArgs& args, const MoeTokenUnpermuteGradOutputs& outputs) {
  const TensorView &rows = args.permuted_tokens, &grad = args.grad_unpermuted_tokens;
  const int64_t topk = args.probs.present() ? args.probs.shape[1] : 1;
  const std::vector<int64_t> index = read_slots(args.sorted_indices);
  clear(outputs.permuted_grad);
  for (size_t f = 0; f < index.size(); ++f) {
    const int64_t token = static_cast<int64_t>(f) / topk, k = static_cast<int64_t>(f) % topk;
    const int64_t row = index[f];
    const bool used = row >= 0 && row < rows.shape[0];
    double product = 0;
    for (int64_t h = 0; used && h < rows.shape[1]; ++h) {
      const float value = read_float(grad, offset(grad, token, h));
      product += static_cast<double>(value) * read_float(rows, offset(rows, row, h));
      const float prob = args.probs.present() ? read_float(args.probs, offset(args.probs, token, k)) : 1.0f;
      write_float(outputs.permuted_grad, offset(outputs.permuted_grad, row, h), value * prob);
    }
    if (args.probs.present()) {
      write_float(outputs.probs_grad, offset(outputs.probs_grad, token, k), static_cast<float>(product));
    }
  }
}

template <class Body>
Status guarded(const char* name, Body&& body) {
  const base::DefaultFpEnv fp_env;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, std::string(name) + " has no memory for its work space");
  }
}

}  // namespace

Status moe_token_permute(const MoeTokenPermuteArgs& args, const MoeTokenPermuteOutputs& outputs) {
  auto wanted = moe_token_permute_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.permuted_tokens, wanted->permuted_tokens, "permuted_tokens"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.sorted_indices, wanted->sorted_indices, "sorted_indices"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.expanded_scale, wanted->expanded_scale, "expanded_scale"));
  return guarded("moe_token_permute", [&] { return permute(args, outputs); });
}

Status moe_token_permute_grad(const MoeTokenPermuteGradArgs& args,
                              const MoeTokenPermuteGradOutputs& outputs) {
  auto wanted = moe_token_permute_grad_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.grad_tokens, wanted->grad_tokens, "grad_tokens"));
  return guarded("moe_token_permute_grad", [&] {
    sum_slots(args.grad_permuted_tokens, args.sorted_indices, args.num_topk, {}, outputs.grad_tokens);
    return Status::ok();
  });
}

Status moe_token_unpermute(const MoeTokenUnpermuteArgs& args, const MoeTokenUnpermuteOutputs& outputs) {
  auto wanted = moe_token_unpermute_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.out, wanted->out, "out"));
  return guarded("moe_token_unpermute", [&] {
    const int64_t topk = args.probs.present() ? args.probs.shape[1] : 1;
    sum_slots(args.permuted_tokens, args.sorted_indices, topk, args.probs, outputs.out);
    return Status::ok();
  });
}

Status moe_token_unpermute_grad(const MoeTokenUnpermuteGradArgs& args,
                                const MoeTokenUnpermuteGradOutputs& outputs) {
  auto wanted = moe_token_unpermute_grad_outputs(args);
  if (!wanted) return wanted.status();
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.permuted_grad, wanted->permuted_grad, "permuted_grad"));
  MEGAMOE_RETURN_IF_ERROR(check_like(outputs.probs_grad, wanted->probs_grad, "probs_grad"));
  return guarded("moe_token_unpermute_grad", [&] {
    unpermute_grad(args, outputs);
    return Status::ok();
  });
}

}  // namespace megamoe::reference
