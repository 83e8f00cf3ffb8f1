// One layer run over all ranks on batches of tokens: results, times and trace of every batch.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/team.h"
#include "cli/command.h"
#include "cli/efficiency.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/trace_share.h"
#include "megamoe/mega_moe.h"
#include "megamoe/reference.h"

namespace megamoe::cli {

/// Tokens of all ranks together; rank r takes rows [T r / ranks, T (r + 1) / ranks).
struct Batch {
  TensorView x, topk_ids, topk_weights;
  TensorView scales;  ///< of x where it comes as codes
  /// Further routings of the same tokens: timed calls take them in turn, so that one call's weights are not
  /// the next one's cache contents. Results of such a batch are those of its last call.
  std::vector<TensorView> more_topk_ids;
  int64_t tokens() const { return x.shape[0]; }
};

/// A layer with the weights of all experts.
struct LayerJob {
  BufferConfig config;  ///< num_max_tokens_per_rank is filled in
  Activation activation;
  LinearWeights weight1, weight2;
  LinearWeights shared_weight1, shared_weight2;  ///< experts that every token passes, the same on all ranks
  std::vector<Batch> batches;
  std::shared_ptr<const void> memory;  ///< of weights that are views of it
};

struct JobOptions {
  const CommonOptions* common = nullptr;
  int64_t repeats = 1;           ///< most timed calls per batch, after one that is not timed
  double seconds_per_batch = 0;  ///< stop repeating after about this time; 0 = never
  int64_t traced = 0;  ///< calls after the timed ones whose spans are kept, no more than there are timed ones
  std::string label;   ///< of the progress bar
  int64_t jobs_before = 0;  ///< how many jobs like this one are done, of `jobs` in all; for the progress bar
  int64_t jobs = 1;
  /// What the machine does at best, measured on every rank, in its process: before the first timed call of a
  /// batch and after each one, on the threads of the call, for about `seconds`.
  std::function<Ceilings(base::Team& team, int rank, size_t batch, double seconds)> pass;
  /// Called on every rank, in its process, after the last call of every batch, with that call's tensors.
  /// Stages are then kept.
  std::function<Status(const MegaMoe& op, const CallArgs& args, int rank)> inspect;
};

struct BatchResult {
  SharedArray<uint16_t> y;                 ///< (T, H)
  SharedArray<int32_t> expert_token_nums;  ///< (E,)
  std::vector<double> seconds;             ///< of each timed call: first rank in to last rank out
  std::vector<Ceilings> passes;   ///< of all ranks, one more than calls; empty without JobOptions::pass
  std::vector<CallSpans> traced;  ///< of calls after the timed ones, where all spans could be kept
  double median_seconds() const;
};

struct JobResult {
  std::vector<BatchResult> batches;
  std::vector<std::pair<std::string, std::string>> description;  ///< of rank 0
  std::vector<std::string> kernels;                              ///< of rank 0, see MegaMoe::kernels
  Isa isa = Isa::kGeneric;
  int threads = 0;           ///< of each rank
  int64_t packed_bytes = 0;  ///< of all ranks
};

Result<JobResult> run_layer(const LayerJob& job, const JobOptions& options, Progress* progress);

/// The reference on one batch, split over the same ranks: y (T, H) as bfloat16 bits and expert_token_nums
/// (E,).
struct ReferenceResult {
  std::vector<uint16_t> y;
  std::vector<int32_t> expert_token_nums;
  std::vector<reference::Stages> stages;
};
Result<ReferenceResult> run_reference(const LayerJob& job, const Batch& batch, int ranks,
                                      bool stages = false);

/// First expert of a rank, the number of experts for ranks behind the last one that owns any.
inline int64_t first_expert(int64_t experts, int ranks, int64_t rank) {
  return std::min(experts, (experts + ranks - 1) / ranks * rank);
}

/// The layer of a rank of the buffer, its weights packed.
Result<Layer> packed_layer(const LayerJob& job, const SymmBuffer& buffer);
/// Which of its routings a call on a batch takes. Timed call i of run_layer has turn i + 1.
inline int64_t routing_of(const Batch& batch, int64_t turn) {
  return turn % (static_cast<int64_t>(batch.more_topk_ids.size()) + 1);
}
/// The tensors of a rank of the buffer in a call on a batch. Calls take its routings in turn. `y` (T, H) and
/// `expert_token_nums` (E,) are those of all ranks.
CallArgs rank_args(const SymmBuffer& buffer, const Batch& batch, int64_t turn, uint16_t* y,
                   int32_t* expert_token_nums);

/// Rows of a tensor.
TensorView row_range(const TensorView& tensor, int64_t begin, int64_t count);
/// Largest part of a batch that one rank takes.
int64_t most_tokens_per_rank(int64_t tokens, int ranks);
/// The buffer that the largest batch of the job needs.
BufferConfig largest_batch_config(const LayerJob& job, int ranks);
inline int64_t first_token(int64_t tokens, int ranks, int64_t rank) {
  return tokens * rank / ranks;
}

/// Activations whose Linear1 yields gate and up columns.
bool is_gated(const Activation& activation);

}  // namespace megamoe::cli
