// Tokens of a model's expert layers, recorded in a safetensors file.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/safetensors.h"
#include "cli/layer_job.h"
#include "cli/workload.h"

namespace megamoe::cli {

/// One recorded layer.
struct CapturedLayer {
  Batch batch;
  TensorView moe_output;  ///< what the model's own layer returned, (T, H) bfloat16; absent if not recorded
};

/// Reads layers.{n}.hidden_states / topk_ids / topk_weights / moe_output and checks them against the model's
/// shape. At most `most_tokens` tokens, 0 = all.
Result<CapturedLayer> captured_layer(const checkpoint::SafeTensors& file, const Shape& shape, int64_t layer,
                                     int64_t most_tokens);

}  // namespace megamoe::cli
