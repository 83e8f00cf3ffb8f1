// Tokens of a model's expert layers, recorded in a safetensors file.
#include "cli/capture.h"

#include <algorithm>

namespace megamoe::cli {
namespace {

/// A tensor of two dimensions with the given columns and, where rows >= 0, rows.
Result<TensorView> matrix(const checkpoint::SafeTensors& file, const std::string& name, int64_t rows,
                          int64_t columns) {
  auto tensor = file.find(name);
  if (!tensor) return tensor.status();
  if (tensor->dims != 2 || tensor->shape[1] != columns || (rows >= 0 && tensor->shape[0] != rows)) {
    return Status(Code::kInvalidArgument,
                  file.path() + ": tensor '" + name + "' has shape " + tensor->shape_text() + ": expected (" +
                      (rows < 0 ? "tokens" : std::to_string(rows)) + ", " + std::to_string(columns) + ")");
  }
  return tensor;
}

}  // namespace

Result<CapturedLayer> captured_layer(const checkpoint::SafeTensors& file, const Shape& shape, int64_t layer,
                                     int64_t most_tokens) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  CapturedLayer captured;
  auto x = matrix(file, prefix + "hidden_states", -1, shape.hidden);
  if (!x) return x.status();
  const int64_t tokens = x->shape[0];
  if (x->dtype != DType::kBFloat16) {
    return Status(Code::kInvalidType, file.path() + ": tensor '" + prefix + "hidden_states' has type " +
                                          dtype_name(x->dtype) + ": expected bfloat16");
  }
  auto ids = matrix(file, prefix + "topk_ids", tokens, shape.topk);
  if (!ids) return ids.status();
  auto weights = matrix(file, prefix + "topk_weights", tokens, shape.topk);
  if (!weights) return weights.status();
  const int64_t used = most_tokens > 0 ? std::min(most_tokens, tokens) : tokens;
  captured.batch.x = row_range(*x, 0, used);
  captured.batch.topk_ids = row_range(*ids, 0, used);
  captured.batch.topk_weights = row_range(*weights, 0, used);
  if (file.has(prefix + "moe_output")) {
    auto output = matrix(file, prefix + "moe_output", tokens, shape.hidden);
    if (!output) return output.status();
    if (output->dtype == DType::kBFloat16) captured.moe_output = row_range(*output, 0, used);
  }
  return captured;
}

}  // namespace megamoe::cli
