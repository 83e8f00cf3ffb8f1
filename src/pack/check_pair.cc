// Whether the two linear layers of a layer fit each other.
#include <string>

#include "pack/panel_source.h"

namespace megamoe::pack {

Status expect_size(const std::string& name, const char* what, int64_t got, int64_t expected) {
  if (got == expected) return Status::ok();
  return Status(Code::kInvalidArgument,
                name + " has " + what + " " + std::to_string(got) + ": expected " + std::to_string(expected));
}

Status check_pair(const Geometry& first, const std::string& first_name, const Geometry& second,
                  const std::string& second_name) {
  MEGAMOE_RETURN_IF_ERROR(expect_size(second_name, "experts", second.experts, first.experts));
  MEGAMOE_RETURN_IF_ERROR(expect_size(second_name, "reduction size", second.k, first.outputs()));
  MEGAMOE_RETURN_IF_ERROR(expect_size(second_name, "output size", second.n, first.k));
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
