// Structs of the C interface -> those of the C++ interface, whatever version of the struct the caller has.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "megamoe/c.h"
#include "megamoe/mega_moe.h"

namespace megamoe::c_api {

/// Copies a caller's struct over `known`, which holds defaults. A shorter one leaves later fields at their
/// defaults; a longer one must be zero past the fields this library knows.
template <class Struct>
Status read_struct(const Struct* given, const char* name, Struct& known) {
  if (given == nullptr)
    return Status(Code::kInvalidArgument, std::string(name) + " = null: expected a struct");
  const size_t size = given->struct_size;
  constexpr size_t kLargest = size_t{1} << 16;
  if (size < sizeof(size_t) || size > kLargest) {
    return Status(Code::kInvalidArgument, std::string(name) + ".struct_size = " + std::to_string(size) +
                                              ": expected " + std::to_string(sizeof(Struct)));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return Status(Code::kUnsupported, std::string(name) + " sets fields past its first " +
                                            std::to_string(sizeof(Struct)) +
                                            " bytes: expected a newer library");
    }
  }
  std::memcpy(&known, given, size < sizeof(Struct) ? size : sizeof(Struct));
  return Status::ok();
}

/// A type, or -1 for none.
Status to_optional_dtype(int32_t number, const char* name, const char* field, DType& out);
Result<BufferConfig> to_config(const megamoe_buffer_config* config);
Result<BufferOptions> to_options(const megamoe_buffer_options* options);
/// `most_experts`: of the rank, or of any layer where that is not known. Lists beside the weights are not
/// read where they are longer than the weights have experts.
Result<LinearWeights> to_weights(const megamoe_linear_weights* weights, const char* name,
                                 int64_t most_experts);
/// Activation only; the weights are the caller's to fill in.
Activation to_activation(const megamoe_layer& layer);
Result<TensorView> to_view(const megamoe_tensor* tensor, const char* name);
Result<TensorRef> to_ref(const megamoe_tensor* tensor, const char* name);
megamoe_tensor from_ref(const TensorRef& tensor);
/// A level by its name; null leaves `out` as it is.
Status to_isa(const char* name, std::optional<Isa>& out);

}  // namespace megamoe::c_api
