// Test cases of the routing operators.
#include "cli/case_routing.h"

#include <type_traits>
#include <utility>

#include "cli/case_attributes.h"
#include "route/fields.h"

namespace megamoe::cli {
namespace {

constexpr std::byte kUntouched{0xff};  // NaN in every float format

TensorView input_view(const Case& test, const char* arg) {
  const CaseTensor* tensor = test.input(arg);
  return tensor == nullptr ? TensorView{} : tensor->view();
}

/// Memory of one output under the name that cases use.
struct NamedOutput {
  const char* name;
  TensorRef* tensor;
  std::vector<std::byte> bytes;

  NamedOutput(const char* output_name, TensorRef& output) : name(output_name), tensor(&output) {
    if (!output.present()) return;
    bytes.resize(static_cast<size_t>(output.elements() * dtype_bits(output.dtype) / 8), kUntouched);
    output.data = bytes.data();
  }
};

/// What the case expects, out of what there is.
Result<CaseOutputs> in_order(const Case& test, std::vector<NamedOutput>& outputs) {
  CaseOutputs result;
  for (const CaseTensor& expected : test.expected) {
    for (NamedOutput& output : outputs) {
      if (expected.arg != output.name) continue;
      const TensorView view = megamoe::view(*output.tensor);
      const std::vector<int64_t> shape(view.shape, view.shape + view.dims);
      if (!view.present() || view.dtype != expected.dtype || shape != expected.shape) {
        return Status(Code::kDataLoss, expected.arg + " is " + dtype_name(view.dtype) + " " +
                                           view.shape_text() + ": expected " + dtype_name(expected.dtype) +
                                           " " + expected.view().shape_text());
      }
      result.push_back(std::move(output.bytes));
    }
  }
  if (result.size() == test.expected.size()) return result;
  return Status(Code::kDataLoss, "the case expects an output that " + test.op + " does not have");
}

/// Runs a case with an operator, or with one that stands in for it.
template <class Args, class Outputs>
Result<CaseOutputs> run_operator(const Case& test, const route::Operator<Args, Outputs>& op,
                                 Status (*stand_in)(const Args&, const Outputs&),
                                 const RoutingOptions& options) {
  Args args;
  Attributes attributes(test);
  route::visit_arguments(args, [&](const char* name, auto& field) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, TensorView>) {
      field = input_view(test, name);
    } else {
      attributes.read(name, field);
    }
  });
  MEGAMOE_RETURN_IF_ERROR(attributes.status());
  Result<Outputs> outputs = op.outputs(args);
  if (!outputs) return outputs.status();
  std::vector<NamedOutput> named;
  route::visit_outputs(*outputs,
                       [&](const char* name, TensorRef& output) { named.emplace_back(name, output); });
  MEGAMOE_RETURN_IF_ERROR(stand_in != nullptr ? stand_in(args, *outputs) : op.run(args, *outputs, options));
  return in_order(test, named);
}

}  // namespace

std::optional<Result<CaseOutputs>> run_routing_case(const Case& test, const RoutingOptions& options,
                                                    const RoutingStandIns* stand_ins) {
  std::optional<Result<CaseOutputs>> result;
  route::visit_operators([&]<class Args, class Outputs>(const route::Operator<Args, Outputs>& op) {
    using StandIn = Status (*)(const Args&, const Outputs&);
    if (test.op != op.name) return;
    const StandIn stand_in = stand_ins == nullptr ? nullptr : std::get<StandIn>(*stand_ins);
    result = run_operator(test, op, stand_in, options);
  });
  return result;
}

}  // namespace megamoe::cli
