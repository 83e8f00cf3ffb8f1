// Arrays as most callers have them, read in place: no object of this package or of DLPack is made for one.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "megamoe/tensor.h"

namespace megamoe::python {

/// A framework whose arrays of one exact type can be read through its C interface.
class Framework {
 public:
  virtual ~Framework() = default;
  /// A dense array in this machine's memory with whole, aligned elements of a number type that the framework
  /// knows itself; nothing for any other, which is for tensors.py to read or to refuse.
  virtual std::optional<TensorView> view(nanobind::handle array) const = 0;
  /// A new contiguous array of the shape and element type of `array`.
  virtual nanobind::object like(nanobind::handle array, const TensorView& view) const = 0;
  /// A new array of `n` int32.
  virtual nanobind::object counts(int64_t n) const = 0;
};

/// The framework of an array, or null: of torch tensors only after meet_torch(), and only where this version
/// of torch has the exchange table of DLPack. Arrays of derived types have none.
const Framework* framework_of(nanobind::handle array);

/// The same for an optional argument: true with an absent view for None.
bool view_plain(nanobind::handle array, TensorView& view);

/// Defines meet_numpy and meet_torch, which the package calls once it has the modules.
void bind_plain_arrays(nanobind::module_& module);

}  // namespace megamoe::python
