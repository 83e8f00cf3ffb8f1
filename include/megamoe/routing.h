// The routing operators: expand tokens by expert, bring rows back, choose experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megamoe/export.h"
#include "megamoe/isa.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe {

// Every operator comes as a pair. `<operator>_outputs` checks the arguments without touching memory and says
// which outputs there are: type and shape of each, contiguous, data null; an output that the arguments do not
// ask for is absent (no type). `<operator>` checks everything again, then writes all elements of all outputs,
// or nothing when it returns an error. Inputs may have any strides (4-bit inputs: contiguous rows that begin
// at whole bytes); outputs must be contiguous. Optional inputs are absent when they have no type.

/// How a routing operator runs. Results do not depend on it.
struct RoutingOptions {
  int threads = 0;         ///< most threads to use, at most 4096; 0 = physical cores
  std::optional<Isa> isa;  ///< kernels of this level; absent = default_isa()
};

/// A quant_mode of the routing operators; -1, not listed, copies.
struct QuantModeInfo {
  int64_t mode;
  const char* rule;        ///< of megamoe/quantise.h
  const char* floor_rule;  ///< the rule with mx_scale "floor"; the same where there is only one
  int scale_dims;          ///< dimensions of expanded_scale: 0 none, 3 = columns in pairs
  bool drop_pad;           ///< allowed with drop_pad_mode 1
  bool permute;            ///< allowed in moe_token_permute
};
MEGAMOE_API std::vector<QuantModeInfo> quant_modes();

/// moe_init_routing_v3: names and defaults of the operator document. N tokens, K slots, H columns, F = N * K.
struct MoeInitRoutingArgs {
  TensorView x;           ///< (N, H)
  TensorView expert_idx;  ///< (N, K) int32 or int64, each in [0, expert_num) or -1 = slot not used
  /// Mode -1: float32 (N,), or float8_e8m0 (N, ceil(H / 64), 2) with x in fp8 or fp4: goes along with the
  /// rows. Mode 0 and 7: float32 (1,). Mode 1: smooth float32 (end - start, H) or (1, H). Mode 13: smooth (1,
  /// H).
  TensorView scale;
  TensorView offset;             ///< mode 0: float32 (1,)
  int64_t active_num = -1;       ///< rows of expanded_x; -1 and 0 = F
  int64_t expert_capacity = -1;  ///< rows per expert with drop_pad_mode 1, in [1, N]; any without tokens
  int64_t expert_num = -1;
  int64_t drop_pad_mode = 0;           ///< 1: expanded_x (expert_num, expert_capacity, H), zero padded
  int64_t expert_tokens_num_type = 0;  ///< 0 cumsum, 1 count, 2 key_value
  bool expert_tokens_num_flag = false;
  int64_t quant_mode = -1;
  std::vector<int64_t> active_expert_range;  ///< {start, end}; empty = all experts
  int64_t row_idx_type = 0;                  ///< 0 gather, 1 scatter
  std::string mx_scale = "round_up";         ///< modes 2 and 3: "round_up", or "floor" as older versions did
};

struct MoeInitRoutingOutputs {
  TensorRef expanded_x;
  TensorRef expanded_row_idx;               ///< int32 (F,)
  TensorRef expert_tokens_count_or_cumsum;  ///< int64, absent without expert_tokens_num_flag
  TensorRef expanded_scale;                 ///< absent where the mode has none
};

MEGAMOE_API Result<MoeInitRoutingOutputs> moe_init_routing_v3_outputs(const MoeInitRoutingArgs& args);
MEGAMOE_API Status moe_init_routing_v3(const MoeInitRoutingArgs& args, const MoeInitRoutingOutputs& outputs,
                                       const RoutingOptions& options = {});

/// moe_token_permute. F = elements of indices.
struct MoeTokenPermuteArgs {
  TensorView tokens;   ///< (N, H)
  TensorView indices;  ///< (N,) or (N, K) int32 or int64, each in [0, 2^31 - 1)
  /// Rows M of permuted_tokens: absent or 0 = F; n > 0 = min(n, F); n < 0 = max(F + n, 0).
  std::optional<int64_t> num_out_tokens;
  bool padded_mode = false;  ///< only false
  int64_t quant_mode = -1;   ///< -1, 2, 3 or 9, as in moe_init_routing_v3
  std::string mx_scale = "round_up";
};

struct MoeTokenPermuteOutputs {
  TensorRef permuted_tokens;  ///< (M, H)
  TensorRef sorted_indices;   ///< int32 (F,): where each slot went
  TensorRef expanded_scale;   ///< float32 (0,) with quant_mode -1
};

MEGAMOE_API Result<MoeTokenPermuteOutputs> moe_token_permute_outputs(const MoeTokenPermuteArgs& args);
MEGAMOE_API Status moe_token_permute(const MoeTokenPermuteArgs& args, const MoeTokenPermuteOutputs& outputs,
                                     const RoutingOptions& options = {});

/// Gradient of moe_token_permute (quant_mode -1) to its tokens.
struct MoeTokenPermuteGradArgs {
  TensorView grad_permuted_tokens;  ///< (M, H) float32, float16 or bfloat16
  TensorView sorted_indices;        ///< (F,) int32 or int64; an index outside [0, M) adds nothing
  int64_t num_topk = 1;             ///< K, divides F
  bool padded_mode = false;         ///< only false
};

struct MoeTokenPermuteGradOutputs {
  TensorRef grad_tokens;  ///< (F / K, H), type of grad_permuted_tokens
};

MEGAMOE_API Result<MoeTokenPermuteGradOutputs> moe_token_permute_grad_outputs(
    const MoeTokenPermuteGradArgs& args);
MEGAMOE_API Status moe_token_permute_grad(const MoeTokenPermuteGradArgs& args,
                                          const MoeTokenPermuteGradOutputs& outputs,
                                          const RoutingOptions& options = {});

/// moe_token_unpermute: out[t] = sum over k of permuted_tokens[sorted_indices[t * K + k]] * probs[t, k].
struct MoeTokenUnpermuteArgs {
  TensorView permuted_tokens;  ///< (M, H) float32, float16 or bfloat16
  TensorView sorted_indices;   ///< (F,) int32 or int64; an index outside [0, M) is skipped
  TensorView probs;            ///< optional (F / K, K) float32, float16 or bfloat16; without it K = 1
  bool padded_mode = false;    ///< only false
};

struct MoeTokenUnpermuteOutputs {
  TensorRef out;  ///< (F / K, H), type of permuted_tokens
};

MEGAMOE_API Result<MoeTokenUnpermuteOutputs> moe_token_unpermute_outputs(const MoeTokenUnpermuteArgs& args);
MEGAMOE_API Status moe_token_unpermute(const MoeTokenUnpermuteArgs& args,
                                       const MoeTokenUnpermuteOutputs& outputs,
                                       const RoutingOptions& options = {});

/// Gradients of moe_token_unpermute.
struct MoeTokenUnpermuteGradArgs {
  TensorView permuted_tokens;         ///< (M, H), as in the forward call
  TensorView grad_unpermuted_tokens;  ///< (F / K, H), type of permuted_tokens
  TensorView sorted_indices;          ///< (F,) int32 or int64; every row at most once
  TensorView probs;                   ///< as in the forward call
  bool padded_mode = false;           ///< only false
};

struct MoeTokenUnpermuteGradOutputs {
  TensorRef permuted_grad;  ///< (M, H), type of permuted_tokens; 0 where no index points to
  TensorRef probs_grad;     ///< (F / K, K), type of probs; absent without probs
};

MEGAMOE_API Result<MoeTokenUnpermuteGradOutputs> moe_token_unpermute_grad_outputs(
    const MoeTokenUnpermuteGradArgs& args);
MEGAMOE_API Status moe_token_unpermute_grad(const MoeTokenUnpermuteGradArgs& args,
                                            const MoeTokenUnpermuteGradOutputs& outputs,
                                            const RoutingOptions& options = {});

/// moe_gating_top_k: scores of all experts from router logits, the k best of them and their weights.
struct MoeGatingTopKArgs {
  TensorView logits;  ///< (T, E) float32, float16 or bfloat16
  /// Optional (E,) in the same types: added to the score for the selection only.
  TensorView bias;
  int64_t k = 0;                    ///< in [1, E / n_group * topk_group]
  std::string scoring = "softmax";  ///< "softmax" or "sigmoid"
  int64_t n_group = 1;              ///< groups of neighbouring experts, divides E
  int64_t topk_group = 1;           ///< groups that stay, the best by `group_score`
  bool renormalize = false;         ///< weights divided by their sum
  double routed_scaling_factor = 1.0;
  std::string group_score = "top2_sum";  ///< of a group's selection scores: "top2_sum" or "max"
};

struct MoeGatingTopKOutputs {
  TensorRef weights;  ///< (T, k) float32
  TensorRef ids;      ///< (T, k) int32, best first, ties to the lowest id
};

MEGAMOE_API Result<MoeGatingTopKOutputs> moe_gating_top_k_outputs(const MoeGatingTopKArgs& args);
MEGAMOE_API Status moe_gating_top_k(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs,
                                    const RoutingOptions& options = {});

}  // namespace megamoe
