// The operators in plain loops with double accumulation: slow, obvious, shipped, and sharing no code with the
// fast path.
#pragma once

#include <cstdint>
#include <vector>

#include "megamoe/export.h"
#include "megamoe/mega_moe.h"
#include "megamoe/routing.h"
#include "megamoe/stages.h"
#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::reference {

using megamoe::Stages;

/// Inputs and weights of one rank for the reference.
struct RankInput {
  CallArgs call;
  LinearWeights weight1, weight2;
  LinearWeights shared_weight1 = {}, shared_weight2 = {};  ///< of 0 to 4 shared experts, as in Layer
  DType shared_expert_quant_out_dtype = DType::kUndefined;
};

/// The mega_moe operator over all ranks of a group in one call: MegaMoE document, data flow, with the
/// roundings written out. Products are summed in double. Writes y and expert_token_nums of every rank;
/// `stages`, if given, gets one entry per rank.
MEGAMOE_API Status mega_moe(const BufferConfig& config, const Activation& activation,
                            std::vector<RankInput>& ranks, std::vector<Stages>* stages = nullptr);

/// s = fl32(max|x| / 127), q = RNE(fl32(x / s)); a zero row has s = 0 and q = 0. x (T, H) bfloat16 or
/// float32.
MEGAMOE_API Status int8_per_token(const TensorView& x, const TensorRef& codes, const TensorRef& scale);

/// The routing operators in plain loops: what each of them writes, element by element. Arguments are checked
/// by the `_outputs` functions of megamoe/routing.h.
MEGAMOE_API Status moe_init_routing_v3(const MoeInitRoutingArgs& args, const MoeInitRoutingOutputs& outputs);
MEGAMOE_API Status moe_token_permute(const MoeTokenPermuteArgs& args, const MoeTokenPermuteOutputs& outputs);
MEGAMOE_API Status moe_token_permute_grad(const MoeTokenPermuteGradArgs& args,
                                          const MoeTokenPermuteGradOutputs& outputs);
MEGAMOE_API Status moe_token_unpermute(const MoeTokenUnpermuteArgs& args,
                                       const MoeTokenUnpermuteOutputs& outputs);
/// Sums of probs_grad are made in double.
MEGAMOE_API Status moe_token_unpermute_grad(const MoeTokenUnpermuteGradArgs& args,
                                            const MoeTokenUnpermuteGradOutputs& outputs);
/// Scores are made in double.
MEGAMOE_API Status moe_gating_top_k(const MoeGatingTopKArgs& args, const MoeGatingTopKOutputs& outputs);

}  // namespace megamoe::reference
