// Expert layers of checkpoints: what config.json says, the router, and the weights packed.
#include "checkpoint.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>

#include "checkpoint/moe_checkpoint.h"
#include "errors.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace megamoe::python {
namespace {

using checkpoint::MoeCheckpoint;
using checkpoint::MoeLayer;
using PackedPtr = std::shared_ptr<PackedWeights>;

/// A layer with the files that its views lie in.
struct Layer {
  std::shared_ptr<const MoeCheckpoint> files;
  MoeLayer layer;
};

nb::object optional_double(const std::optional<double>& value) {
  return value ? nb::object(nb::float_(*value)) : nb::none();
}

nb::dict config_of(const MoeCheckpoint& model) {
  const checkpoint::MoeConfig& config = model.config();
  nb::dict result;
  result["model_type"] = config.model_type;
  result["num_experts"] = config.num_experts;
  result["num_topk"] = config.top_k;
  result["hidden"] = config.hidden;
  result["intermediate_hidden"] = config.intermediate;
  result["activation"] = config.activation.name;
  result["activation_clamp"] = optional_double(config.activation.clamp);
  result["alpha"] = optional_double(config.activation.alpha);
  result["n_group"] = config.routing.n_group;
  result["topk_group"] = config.routing.topk_group;
  result["group_score"] = config.routing.group_score;
  result["renormalize"] = config.routing.renormalize;
  result["routed_scaling_factor"] = config.routing.routed_scaling_factor;
  return result;
}

/// The values of a float32 tensor as an array that keeps `owner` alive; None for an absent one.
nb::object values_of(const TensorView& tensor, nb::handle owner) {
  if (!tensor.present()) return nb::none();
  size_t shape[kMaxDims];
  for (int d = 0; d < tensor.dims; ++d) shape[d] = static_cast<size_t>(tensor.shape[d]);
  return nb::cast(nb::ndarray<nb::numpy, const float, nb::device::cpu>(
      tensor.data, static_cast<size_t>(tensor.dims), shape, owner));
}

std::pair<PackedPtr, PackedPtr> pack(const LinearWeights& weight1, const LinearWeights& weight2,
                                     int threads) {
  auto packed1 = unlocked([&] { return PackedWeights::pack_linear1(weight1, /*gated=*/true, threads); });
  auto packed2 = unlocked([&] { return PackedWeights::pack_linear2(weight2, threads); });
  return {std::const_pointer_cast<PackedWeights>(value_or_raise(std::move(packed1))),
          std::const_pointer_cast<PackedWeights>(value_or_raise(std::move(packed2)))};
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  nb::class_<Layer>(module, "CheckpointLayer", "The weights of one expert layer, in the files they lie in.")
      .def_prop_ro(
          "weight_type",
          [](const Layer& self) { return std::string(dtype_name(self.layer.weight1.weight[0].dtype)); })
      .def_prop_ro("scale_group", [](const Layer& self) { return self.layer.weight1.scale_group; })
      .def_prop_ro("scoring", [](const Layer& self) { return self.layer.scoring; })
      .def_prop_ro("has_shared", [](const Layer& self) { return !self.layer.shared_weight1.weight.empty(); })
      .def_prop_ro("gated", [](const Layer& self) { return self.layer.gated; })
      .def_prop_ro(
          "shared_gate",
          [](nb::handle self) { return values_of(nb::cast<const Layer&>(self).layer.shared_gate, self); })
      .def_prop_ro("router",
                   [](nb::handle self) { return values_of(nb::cast<const Layer&>(self).layer.router, self); })
      .def_prop_ro(
          "router_bias",
          [](nb::handle self) { return values_of(nb::cast<const Layer&>(self).layer.router_bias, self); })
      .def_prop_ro(
          "correction_bias",
          [](nb::handle self) { return values_of(nb::cast<const Layer&>(self).layer.correction_bias, self); })
      .def(
          "pack",
          [](const Layer& self, int64_t begin, int64_t count, int threads) {
            return pack(checkpoint::expert_range(self.layer.weight1, begin, count),
                        checkpoint::expert_range(self.layer.weight2, begin, count), threads);
          },
          "begin"_a, "count"_a, "threads"_a, "Experts [begin, begin + count) in the order the kernels read.")
      .def(
          "pack_shared",
          [](const Layer& self, int threads) {
            return pack(self.layer.shared_weight1, self.layer.shared_weight2, threads);
          },
          "threads"_a);
  nb::class_<MoeCheckpoint>(module, "Checkpoint", "A checkpoint with expert layers, its files mapped.")
      .def_static(
          "open",
          [](const std::string& path) {
            return std::shared_ptr<MoeCheckpoint>(
                value_or_raise(unlocked([&] { return MoeCheckpoint::open(path); })));
          },
          "path"_a)
      .def_prop_ro("config", &config_of)
      .def_prop_ro("layers", &MoeCheckpoint::layers)
      .def(
          "layer",
          [](std::shared_ptr<MoeCheckpoint> self, int64_t index, bool gated) {
            return Layer{self, value_or_raise(unlocked([&] { return self->layer(index, gated); }))};
          },
          "index"_a, "gated"_a);
}

}  // namespace megamoe::python
