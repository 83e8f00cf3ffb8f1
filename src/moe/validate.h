// Checks of everything a caller passes: settings once, the layer once, tensors every call. All in release
// builds.
#pragma once

#include "kernel/contract.h"
#include "megamoe/mega_moe.h"

namespace megamoe::moe {

struct Codec;

/// Values of combine_comm_mode.
enum CombineCommMode { kEachSlotAlone = 0, kMergeRanks = 1, kMergeDomains = 2 };

/// Settings of a buffer for a group of `ranks`.
Status check_config(const BufferConfig& config, int64_t ranks);

/// Whether the codes of a row of `hidden` values fill whole bytes; errors name the setting that chose them.
Status check_code_rows(const Codec& codec, int64_t hidden, const char* name);

/// Most experts of one rank; expert e lives on rank e / experts_per_rank.
int64_t experts_per_rank(const BufferConfig& config, int64_t ranks);
/// Experts of one rank; the last ranks may have fewer, or none.
int64_t local_experts(const BufferConfig& config, int64_t ranks, int64_t rank);

/// Rows one rank can receive: max_recv_token_num, or the most that can arrive.
Result<int64_t> capacity(const BufferConfig& config, int64_t ranks);

/// An activation ready for the kernels.
struct ActivationPlan {
  kernel::ActivationKind kind = kernel::ActivationKind::kSwiglu;
  kernel::ActivationParams params;
  bool gated = true;
};
Result<ActivationPlan> plan_activation(const Activation& given);

/// What a call over `ranks` states of itself, on a buffer of `buffer_bytes` per rank.
Status check_attributes(const CallArgs& args, int64_t ranks, int64_t buffer_bytes);

/// Tensors of one call.
Status check_call(const CallArgs& args, const BufferConfig& config, int64_t experts_of_rank);

}  // namespace megamoe::moe
