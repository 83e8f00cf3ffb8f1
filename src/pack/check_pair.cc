// Whether linear layers have the sizes that they must have, and fit each other.
#include <string>

#include "pack/panel_source.h"

namespace megamoe::pack {

Status check_sizes(const Geometry& geometry, const std::string& name, const ExpectedSizes& expected) {
  const struct {
    const char* what;
    int64_t got, expected;
  } sizes[] = {{"experts", geometry.experts, expected.experts},
               {"reduction size", geometry.k, expected.k},
               {"output size", geometry.n, expected.n}};
  for (const auto& size : sizes) {
    if (size.expected < 0 || size.got == size.expected) continue;
    return Status(Code::kInvalidArgument, name + " has " + size.what + " " + std::to_string(size.got) +
                                              ": expected " + std::to_string(size.expected));
  }
  return Status::ok();
}

Status check_pair(const Geometry& first, const std::string& first_name, const Geometry& second,
                  const std::string& second_name) {
  MEGAMOE_RETURN_IF_ERROR(check_sizes(second, second_name, {first.experts, first.outputs(), first.k}));
  if (second.dtype != first.dtype) {
    return Status(Code::kInvalidType, second_name + " has type " + dtype_name(second.dtype) + ": expected " +
                                          dtype_name(first.dtype) + " as " + first_name);
  }
  if (second.scales != first.scales) {
    return Status(Code::kInvalidArgument,
                  second_name + " has type " + weight_form_name(second.dtype, second.scales) + ": expected " +
                      weight_form_name(first.dtype, first.scales) + " as " + first_name);
  }
  return Status::ok();
}

}  // namespace megamoe::pack
