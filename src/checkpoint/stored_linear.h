// The weights of one linear layer as checkpoints store them, in any of the known forms, as LinearWeights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "checkpoint/moe_config.h"
#include "checkpoint/tensor_set.h"

namespace megamoe::checkpoint {

/// Memory of what is not stored as the library takes it: scales joined, words unpacked.
class LayerMemory {
 public:
  Result<std::byte*> take(int64_t bytes);

 private:
  std::vector<base::Pages> pages_;
};

/// Where a linear layer stands: names without the suffix of a form, one of every expert, or one for all.
struct LinearNames {
  std::vector<std::string> first;  ///< gate, or gate and up in one, or down
  std::vector<std::string> up;     ///< of separate gate and up tensors
  bool stacked = false;
};

struct LinearShape {
  int64_t experts = 0;
  int64_t n = 0;  ///< outputs of `first`; `up` has as many
  int64_t k = 0;
};

struct StoredLinear {
  const TensorSet& tensors;
  const StoredQuantisation& quantisation;
  LinearNames names;
  LinearShape shape;
};

/// A way to store weights: the tensor `name` + suffix, and what belongs to it.
struct StoredForm {
  const char* suffix;
  bool stacked;
  Result<LinearWeights> (*read)(const StoredLinear& from, LayerMemory& memory);
};

/// The form in which the set stores weights of that name, null for none.
const StoredForm* find_form(const TensorSet& tensors, const std::string& name, bool stacked);

/// Forms: one matrix per expert (".weight"), with the scales of 128 x 128 blocks (".weight_scale_inv"); words
/// of eight int4 of GPTQ and AWQ (".qweight"); stacked matrices in either orientation, and MXFP4 ("_blocks",
/// "_scales"). Biases (".bias", "_bias") where they are there. Every shape is checked.
Result<LinearWeights> read_linear(const StoredLinear& from, LayerMemory& memory);

/// A tensor of numbers as float32 of `shape`; absent for a name that is not there, unless it is required.
Result<TensorView> read_floats(const TensorSet& tensors, const std::string& name,
                               const std::vector<int64_t>& shape, bool required, LayerMemory& memory);

/// The form ".qweight".
Result<LinearWeights> read_words(const StoredLinear& from, LayerMemory& memory);

Status wrong_shape(const std::string& name, const TensorView& t, const std::string& expected);
std::string shape_text(const std::vector<int64_t>& shape);
bool has_shape(const TensorView& t, const std::vector<int64_t>& shape);

}  // namespace megamoe::checkpoint
