// Calls of the quantisation rules and casts, without the interpreter lock.
#include "quantise.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "errors.h"
#include "megamoe/quantise.h"
#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

TensorView view_of(const Input* input) {
  return input == nullptr ? TensorView{} : input->view;
}

QuantArguments arguments_of(const Input* smooth, std::optional<float> scale, std::optional<float> offset,
                            const std::optional<std::string>& isa) {
  QuantArguments arguments;
  arguments.smooth = view_of(smooth);
  arguments.scale = scale;
  arguments.offset = offset;
  if (isa) arguments.isa = value_or_raise(isa_from_name(*isa));
  return arguments;
}

template <class Work>
void run(Work&& work) {
  Status status = Status::ok();
  {
    nb::gil_scoped_release release;
    status = work();
  }
  raise_if_error(status);
}

}  // namespace

void bind_quantise(nb::module_& module) {
  module.def(
      "quant_rules",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string, int64_t, std::vector<std::string>, bool,
                               bool, bool>>
            rules;
        for (const QuantRuleInfo& info : quant_rules()) {
          std::vector<std::string> inputs;
          for (DType type : info.inputs) inputs.emplace_back(dtype_name(type));
          rules.emplace_back(info.name, dtype_name(info.codes), dtype_name(info.scales), info.group,
                             std::move(inputs), info.takes_smooth, info.takes_scale, info.takes_offset);
        }
        return rules;
      },
      "All rules: (name, codes, scales, group, inputs, takes smooth, takes scale, takes offset).");
  module.def(
      "quantise",
      [](const std::string& rule, const Input& x, const Output& codes, const Output* scales,
         const Input* smooth, std::optional<float> scale, std::optional<float> offset,
         const std::optional<std::string>& isa) {
        const QuantArguments arguments = arguments_of(smooth, scale, offset, isa);
        const TensorRef scales_ref = scales == nullptr ? TensorRef{} : scales->ref;
        run([&] { return quantise(rule, x.view, codes.ref, scales_ref, arguments); });
      },
      "rule"_a, "x"_a, "codes"_a, "scales"_a.none(), "smooth"_a.none(), "scale"_a.none(), "offset"_a.none(),
      "isa"_a.none());
  module.def(
      "dequantise",
      [](const std::string& rule, const Input& codes, const Input* scales, const Output& y,
         std::optional<float> scale, std::optional<float> offset, const std::optional<std::string>& isa) {
        const QuantArguments arguments = arguments_of(nullptr, scale, offset, isa);
        run([&] { return dequantise(rule, codes.view, view_of(scales), y.ref, arguments); });
      },
      "rule"_a, "codes"_a, "scales"_a.none(), "y"_a, "scale"_a.none(), "offset"_a.none(), "isa"_a.none());
  module.def(
      "cast",
      [](const Input& x, const Output& y, bool saturate) {
        run([&] { return cast(x.view, y.ref, saturate); });
      },
      "x"_a, "y"_a, "saturate"_a);
  module.def(
      "fractal_storage_shape",
      [](const char* dtype, const char* layout, int64_t rows, int64_t columns) {
        return value_or_raise(fractal_storage_shape(dtype_from_name(dtype),
                                                    value_or_raise(layout_from_name(layout)), rows, columns));
      },
      "dtype"_a, "layout"_a, "rows"_a, "columns"_a,
      "Shape of the memory of one matrix in a fractal layout, in elements.");
  module.def(
      "convert_layout",
      [](const Input& x, const Output& y) { run([&] { return convert_layout(x.view, y.ref); }); }, "x"_a,
      "y"_a);
}

}  // namespace megamoe::python
