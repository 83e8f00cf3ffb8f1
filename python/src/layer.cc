// Weights raw and packed, and a layer planned with them. What Python owns is kept alive beside its views.
#include "layer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "errors.h"
#include "megamoe/megamoe.h"
#include "plain_arrays.h"
#include "tensors.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

using Inputs = std::vector<const Input*>;

/// Raw weights of one linear layer, with the arrays they live in.
struct RawWeights {
  std::vector<InputArray> arrays;
  LinearWeights views;

  RawWeights(const Inputs& weight, const Inputs& scale, const Inputs& bias, const Inputs& zero,
             const Inputs& added_bias, const Inputs& up, bool k_last, int64_t interleave,
             int64_t scale_group) {
    views.k_last = k_last;
    views.scale_group = scale_group;
    views.interleave = interleave;
    add(weight, views.weight);
    add(scale, views.scale);
    add(bias, views.bias);
    add(zero, views.zero);
    add(added_bias, views.added_bias);
    add(up, views.up);
  }

 private:
  void add(const Inputs& inputs, std::vector<TensorView>& list) {
    for (const Input* input : inputs) {
      arrays.push_back(input->array);
      list.push_back(input->view);
    }
  }
};

using PackedPtr = std::shared_ptr<PackedWeights>;
using AnyWeights = std::variant<PackedPtr, const RawWeights*>;

PackedPtr unconst(std::shared_ptr<const PackedWeights> weights) {
  return std::const_pointer_cast<PackedWeights>(std::move(weights));  // no member of it changes anything
}

/// A planned layer, with the arrays of its raw weights.
struct Plan {
  std::vector<InputArray> arrays;
  std::unique_ptr<MegaMoe> moe;
  int64_t hidden = 0;
  int64_t experts = 0;  ///< of this rank

  void take(const AnyWeights& weights, std::shared_ptr<const PackedWeights>& packed, LinearWeights& raw) {
    if (const auto* given = std::get_if<PackedPtr>(&weights)) {
      packed = *given;
      return;
    }
    const RawWeights& given = *std::get<const RawWeights*>(weights);
    arrays.insert(arrays.end(), given.arrays.begin(), given.arrays.end());
    raw = given.views;
  }
};

TensorRef writable(const TensorView& view) {
  TensorRef ref;
  ref.data = const_cast<void*>(view.data);  // of an array that was made here
  ref.dtype = view.dtype;
  ref.dims = view.dims;
  std::copy_n(view.shape, view.dims, ref.shape);
  std::copy_n(view.strides, view.dims, ref.strides);
  return ref;
}

/// The arguments of a call with arrays that can be read in place, and its new results; null with others.
nb::object prepare_plain(const Plan& plan, nb::handle x, nb::handle topk_ids, nb::handle topk_weights,
                         nb::handle x_active_mask, CallArgs& args) {
  const bool plain = view_plain(x, args.x) && view_plain(topk_ids, args.topk_ids) &&
                     view_plain(topk_weights, args.topk_weights) &&
                     view_plain(x_active_mask, args.x_active_mask);
  const auto is_one_of = [](const TensorView& view, std::initializer_list<DType> types) {
    return std::find(types.begin(), types.end(), view.dtype) != types.end();
  };
  if (!plain || args.x.dims != 2 || args.x.shape[1] != plan.hidden ||
      !is_one_of(args.x, {DType::kBFloat16, DType::kFloat16}) ||
      !is_one_of(args.topk_ids, {DType::kInt32, DType::kInt64}) ||
      !is_one_of(args.topk_weights, {DType::kFloat32, DType::kBFloat16}) ||
      !is_one_of(args.x_active_mask, {DType::kInt8, DType::kUInt8, DType::kUndefined})) {
    return {};
  }
  const Framework& framework = *framework_of(x);
  nb::object y = framework.like(x, args.x);
  nb::object counts = framework.counts(plan.experts);
  TensorView y_view, counts_view;
  if (!view_plain(y, y_view) || !view_plain(counts, counts_view)) return {};
  args.y = writable(y_view);
  args.expert_token_nums = writable(counts_view);
  return nb::make_tuple(std::move(y), std::move(counts));
}

nb::object run_plain(Plan& plan, nb::handle x, nb::handle topk_ids, nb::handle topk_weights,
                     nb::handle x_active_mask) {
  CallArgs args;
  nb::object results;
  try {
    results = prepare_plain(plan, x, topk_ids, topk_weights, x_active_mask, args);
  } catch (nb::python_error& error) {
    // The other ranks are in the call: the way that takes part in it with an error meets the same one.
    if (!error.matches(PyExc_Exception)) throw;
  }
  if (!results) return nb::none();
  raise_if_error(unlocked([&] { return plan.moe->run(args); }));
  return results;
}

TensorView view_of(const Input* input) {
  return input == nullptr ? TensorView{} : input->view;
}

void bind_weights(nb::module_& module) {
  nb::class_<RawWeights>(module, "RawWeights", "Weights of one linear layer as the caller holds them.")
      .def(nb::init<const Inputs&, const Inputs&, const Inputs&, const Inputs&, const Inputs&, const Inputs&,
                    bool, int64_t, int64_t>(),
           "weight"_a, "scale"_a, "bias"_a, "zero"_a, "added_bias"_a, "up"_a, "k_last"_a, "interleave"_a,
           "scale_group"_a);
  nb::class_<PackedWeights>(module, "PackedWeights",
                            "Weights of one linear layer in the order the kernels read.")
      .def_prop_ro("dtype",
                   [](const PackedWeights& weights) { return std::string(dtype_name(weights.dtype())); })
      .def_prop_ro("experts", &PackedWeights::experts)
      .def_prop_ro("k", &PackedWeights::k)
      .def_prop_ro("n", &PackedWeights::n)
      .def_prop_ro("nbytes", &PackedWeights::bytes)
      .def_prop_ro("format", &PackedWeights::format)
      .def_prop_ro("scenarios", &PackedWeights::scenarios)
      .def_prop_ro("gated", &PackedWeights::gated)
      .def_prop_ro("interleave", &PackedWeights::interleave)
      .def_prop_ro("scale_group", &PackedWeights::scale_group)
      .def_prop_ro("layout",
                   [](const PackedWeights& weights) { return std::string(layout_name(weights.layout())); })
      .def_prop_ro("k_last", &PackedWeights::k_last)
      .def_prop_ro("has_bias", &PackedWeights::has_bias)
      .def_prop_ro("has_added_bias", &PackedWeights::has_added_bias);
  module.def(
      "check_pair",
      [](const PackedWeights& linear1, const PackedWeights& linear2) {
        raise_if_error(PackedWeights::check_pair(linear1, linear2));
      },
      "linear1"_a, "linear2"_a);
  module.def(
      "pack_linear1",
      [](const RawWeights& weights, bool gated, int threads) {
        return unconst(value_or_raise(
            unlocked([&] { return PackedWeights::pack_linear1(weights.views, gated, threads); })));
      },
      "weights"_a, "gated"_a, "threads"_a);
  module.def(
      "pack_linear2",
      [](const RawWeights& weights, int threads) {
        return unconst(
            value_or_raise(unlocked([&] { return PackedWeights::pack_linear2(weights.views, threads); })));
      },
      "weights"_a, "threads"_a);
}

void bind_plan(nb::module_& module) {
  nb::class_<Activation>(module, "Activation",
                         "Activation between the linear layers; None stands for the default.")
      .def(
          "__init__",
          [](Activation* self, std::string name, std::optional<double> clamp, std::optional<double> alpha,
             std::optional<double> beta, std::optional<double> linear_beta) {
            new (self) Activation{std::move(name), clamp, alpha, beta, linear_beta};
          },
          "name"_a, "clamp"_a.none(), "alpha"_a.none(), "beta"_a.none(), "linear_beta"_a.none());
  nb::class_<Plan>(module, "Plan", "A planned layer on a buffer.")
      .def_static(
          "create",
          [](std::shared_ptr<SymmBuffer> buffer, const AnyWeights& weight1, const AnyWeights& weight2,
             const AnyWeights& shared_weight1, const AnyWeights& shared_weight2, const Activation& activation,
             const std::optional<std::string>& shared_expert_quant_out_dtype,
             const std::optional<std::string>& tuning) {
            auto plan = std::make_unique<Plan>();
            plan->hidden = buffer->config().hidden;
            plan->experts = buffer->experts_per_rank();
            Layer layer;
            plan->take(weight1, layer.packed1, layer.weight1);
            plan->take(weight2, layer.packed2, layer.weight2);
            plan->take(shared_weight1, layer.shared_packed1, layer.shared_weight1);
            plan->take(shared_weight2, layer.shared_packed2, layer.shared_weight2);
            layer.activation = activation;
            if (shared_expert_quant_out_dtype) {
              layer.shared_expert_quant_out_dtype = dtype_from_name(*shared_expert_quant_out_dtype);
            }
            if (tuning) layer.tuning = value_or_raise(Tuning::read(*tuning));
            plan->moe = value_or_raise(
                unlocked([&] { return MegaMoe::create(std::move(buffer), std::move(layer)); }));
            return plan;
          },
          "buffer"_a, "weight1"_a, "weight2"_a, "shared_weight1"_a, "shared_weight2"_a, "activation"_a,
          "shared_expert_quant_out_dtype"_a.none(), "tuning"_a.none())
      .def(
          "run",
          [](Plan& plan, const Input& x, const Input* scales, const Input& topk_ids,
             const Input& topk_weights, const Input* x_active_mask, const Output& y,
             const Output& expert_token_nums, int64_t global_bs, int64_t ccl_buffer_size) {
            CallArgs args;
            args.x = x.view;
            args.scales = view_of(scales);
            args.topk_ids = topk_ids.view;
            args.topk_weights = topk_weights.view;
            args.x_active_mask = view_of(x_active_mask);
            args.y = y.ref;
            args.expert_token_nums = expert_token_nums.ref;
            args.global_bs = global_bs;
            args.ccl_buffer_size = ccl_buffer_size;
            raise_if_error(unlocked([&] { return plan.moe->run(args); }));
          },
          "x"_a, "scales"_a.none(), "topk_ids"_a, "topk_weights"_a, "x_active_mask"_a.none(), "y"_a,
          "expert_token_nums"_a, "global_bs"_a, "ccl_buffer_size"_a)
      .def("run_plain", &run_plain, "x"_a.none(), "topk_ids"_a.none(), "topk_weights"_a.none(),
           "x_active_mask"_a.none(),
           nb::sig("def run_plain(self, x: object, topk_ids: object, topk_weights: object, x_active_mask: "
                   "object) -> tuple[object, object] | None"),
           "(y, expert_token_nums), or None without a call where an array cannot be read in place.")
      .def(
          "description", [](const Plan& plan) { return plan.moe->description(); },
          "The plan as (key, value) pairs.")
      .def(
          "describe", [](const Plan& plan) { return plan.moe->describe(); }, "The plan as text.");
}

}  // namespace

void bind_layer(nb::module_& module) {
  bind_weights(module);
  bind_plan(module);
}

}  // namespace megamoe::python
