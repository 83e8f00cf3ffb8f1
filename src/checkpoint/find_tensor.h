// Tensors of an expert layer: found, checked, or an error that says what is wrong with which one.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "base/memory.h"
#include "checkpoint/tensor_set.h"

namespace megamoe::checkpoint {

/// Memory of what is not stored as the library takes it: scales joined, words unpacked.
class LayerMemory {
 public:
  Result<std::byte*> take(int64_t bytes);

 private:
  std::vector<base::Pages> pages_;
};

/// A tensor of one of `types` and of `shape`. Errors are kDataLoss and name the file, the tensor and what it
/// is of, `owner`: "expert 3 of 8 in layer 1".
Result<TensorView> find_tensor(const TensorSet& tensors, const std::string& name, const std::string& owner,
                               const std::vector<int64_t>& shape, std::initializer_list<DType> types);
/// The same of any type and shape.
Result<TensorView> find_tensor(const TensorSet& tensors, const std::string& name, const std::string& owner);

/// Numbers as float32 of `shape`.
Result<TensorView> find_floats(const TensorSet& tensors, const std::string& name, const std::string& owner,
                               const std::vector<int64_t>& shape, LayerMemory& memory);

/// An error about a tensor that is there: "FILE: tensor 'NAME' " + what.
Status tensor_error(const TensorSet& tensors, const std::string& name, const std::string& what,
                    Code code = Code::kDataLoss);
Status wrong_shape(const TensorSet& tensors, const std::string& name, const TensorView& t,
                   const std::string& expected);
Status wrong_type(const TensorSet& tensors, const std::string& name, const TensorView& t,
                  const std::string& expected);

inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kFloat32, DType::kFloat16,
                                                             DType::kBFloat16};
/// Number i of a tensor of one of kFloatTypes.
float element(const TensorView& t, int64_t i);

bool has_shape(const TensorView& t, const std::vector<int64_t>& shape);
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace megamoe::checkpoint
