// The weights of one linear layer as checkpoints store them, in any of the known forms, as LinearWeights.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/find_tensor.h"
#include "checkpoint/moe_config.h"

namespace megamoe::checkpoint {

/// Where a linear layer stands: names without the suffix of a form, one of every expert, or one for all.
struct LinearNames {
  std::vector<std::string> first;   ///< gate, or gate and up in one, or down
  std::vector<std::string> up;      ///< of separate gate and up tensors
  std::vector<std::string> owners;  ///< what they are of, for errors: "expert 3 of 8 in layer 1"
  bool stacked = false;
};

struct LinearShape {
  int64_t experts = 0;
  int64_t n = 0;  ///< outputs of `first`; `up` has as many
  int64_t k = 0;
};

struct StoredForm;

struct StoredLinear {
  const TensorSet& tensors;
  const StoredQuantisation& quantisation;
  const LinearNames& names;
  LinearShape shape;
  const StoredForm& form;
};

/// A way to store weights: the tensor `name` + suffix, and what belongs to it.
struct StoredForm {
  const char* suffix;
  bool stacked;
  const char* beside[2];  ///< suffixes of tensors that stand beside it in no other form; null = none
  Result<LinearWeights> (*read)(const StoredLinear& from, LayerMemory& memory);
};

/// The one form of all names; where only what belongs to the weights is there, the form it belongs to. With
/// nothing there `otherwise`, or the first form.
Result<const StoredForm*> find_form(const TensorSet& tensors, const LinearNames& names,
                                    const StoredForm* otherwise);

/// Reads `from.form`: one matrix per expert (".weight") of bfloat16, float16 or float32, of float8_e4m3fn
/// with the scales of 128 x 128 blocks (".weight_scale_inv") or of int8 with scales of outputs
/// (".weight_scale"); words of int4 or int8 of GPTQ and AWQ (".qweight") and compressed-tensors
/// (".weight_packed"); stacked matrices in either orientation, and MXFP4 ("_blocks", "_scales"). Biases
/// (".bias", "_bias") where they are there. Every type and shape is checked.
Result<LinearWeights> read_linear(const StoredLinear& from, LayerMemory& memory);

/// The forms ".qweight" and ".weight_packed".
Result<LinearWeights> read_words(const StoredLinear& from, LayerMemory& memory);

}  // namespace megamoe::checkpoint
