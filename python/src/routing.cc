// Calls of the routing operators: check, let Python make the outputs, run without the interpreter lock.
#include "routing.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.h"
#include "route/fields.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

RoutingOptions options_of(int threads, const std::optional<std::string>& isa) {
  RoutingOptions options;
  options.threads = threads;
  if (isa) options.isa = value_or_raise(isa_from_name(*isa));
  return options;
}

/// Gives a described output its memory, which Python makes and `alive` keeps.
void make_output(const nb::callable& make, const char* name, TensorRef& output,
                 std::vector<nb::object>& alive) {
  nb::list shape;
  for (int i = 0; i < output.dims; ++i) shape.append(output.shape[i]);
  nb::object made = make(name, dtype_name(output.dtype), nb::tuple(shape));
  if (!output.present()) return;
  output = nb::cast<const Output&>(made).ref;
  alive.push_back(std::move(made));
}

template <class Args, class Outputs>
void bind_operator(nb::module_& module, const route::Operator<Args, Outputs>& op) {
  module.def(
      op.name,
      [op](const nb::callable& make, const nb::dict& arguments, int threads,
           const std::optional<std::string>& isa) {
        Args args;
        route::visit_arguments(args, [&](const char* name, auto& field) {
          using Field = std::decay_t<decltype(field)>;
          const nb::handle value = arguments[name];
          if constexpr (std::is_same_v<Field, TensorView>) {
            if (!value.is_none()) field = nb::cast<const Input&>(value).view;
          } else {
            field = nb::cast<Field>(value);
          }
        });
        const RoutingOptions options = options_of(threads, isa);
        Outputs outputs = value_or_raise(op.outputs(args));
        std::vector<nb::object> alive;
        route::visit_outputs(
            outputs, [&](const char* name, TensorRef& output) { make_output(make, name, output, alive); });
        Status status = Status::ok();
        {
          nb::gil_scoped_release release;
          status = op.run(args, outputs, options);
        }
        raise_if_error(status);
      },
      "make"_a, "arguments"_a, "threads"_a, "isa"_a.none());
}

}  // namespace

void bind_routing(nb::module_& module) {
  route::visit_operators([&](const auto& op) { bind_operator(module, op); });
  module.def(
      "quant_modes",
      [] {
        std::vector<std::tuple<int64_t, std::string, int>> modes;
        for (const QuantModeInfo& info : quant_modes()) {
          modes.emplace_back(info.mode, info.rule, info.scale_dims);
        }
        return modes;
      },
      "All quant_modes but -1: (mode, rule, dimensions of its scales).");
}

}  // namespace megamoe::python
