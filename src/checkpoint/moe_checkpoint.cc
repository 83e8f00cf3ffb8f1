// The mixture-of-experts layers of a Hugging Face checkpoint: the names under which they stand, and what one
// layer consists of.
#include "checkpoint/moe_checkpoint.h"

#include <filesystem>

#include "checkpoint/stored_linear.h"

namespace megamoe::checkpoint {
namespace {

/// How a family of models names its expert tensors. {L} is the layer, {E} the expert; without {E} a tensor
/// stacks all experts. `up` null: `gate` holds gate and up. The suffixes of the stored forms follow these
/// names.
struct Scheme {
  const char* gate;
  const char* up;
  const char* down;
  const char* router;          ///< .weight and, where it is there, .bias
  const char* corrections[2];  ///< added to the scores of a sigmoid router for the choice
  const char* shared;  ///< .gate_proj, .up_proj, .down_proj of experts that every token passes; null = none
  int64_t interleave;  ///< of gate and up in `gate`
};
constexpr Scheme kSchemes[] = {
#define MEGAMOE_SCHEME(...) {__VA_ARGS__},
#include "checkpoint/schemes.inc"
#undef MEGAMOE_SCHEME
};
constexpr const char* kPrefixes[] = {"model.", "model.language_model.", "language_model.model.", ""};

std::string fill(const std::string& pattern, int64_t layer, int64_t expert) {
  std::string name = pattern;
  const std::pair<const char*, int64_t> values[] = {{"{L}", layer}, {"{E}", expert}};
  for (const auto& [mark, value] : values) {
    if (const size_t at = name.find(mark); at != std::string::npos)
      name.replace(at, 3, std::to_string(value));
  }
  return name;
}

bool is_stacked(const Scheme& scheme) {
  return std::string_view(scheme.gate).find("{E}") == std::string_view::npos;
}

/// A scheme and the prefix under which a layer stands.
struct Place {
  const Scheme* scheme = nullptr;
  std::string prefix;

  std::string name(const char* pattern, int64_t layer, int64_t expert = 0) const {
    return prefix + fill(pattern, layer, expert);
  }
};

/// Where a layer stands; one whose router is there too comes first, because schemes share names of experts.
Place find_place(const TensorSet& tensors, int64_t layer) {
  Place without_router;
  for (const Scheme& scheme : kSchemes) {
    for (const char* prefix : kPrefixes) {
      const Place place{&scheme, prefix};
      if (find_form(tensors, place.name(scheme.gate, layer), is_stacked(scheme)) == nullptr) continue;
      if (tensors.has(place.name(scheme.router, layer) + ".weight")) return place;
      if (without_router.scheme == nullptr) without_router = place;
    }
  }
  return without_router;
}

/// Stacked tensors are stored alike: where one fits both ways the other decides.
Status agree_on_orientation(const std::string& down, LinearWeights& weight1, LinearWeights& weight2) {
  if (weight1.weight[0].dtype == DType::kFloat4E2M1) return Status::ok();
  auto square = [](const LinearWeights& w) { return w.weight[0].shape[1] == w.weight[0].shape[2]; };
  if (square(weight1)) weight1.k_last = weight2.k_last;
  if (square(weight2)) weight2.k_last = weight1.k_last;
  if (weight1.k_last == weight2.k_last) return Status::ok();
  const TensorView& t = weight2.weight[0];
  return wrong_shape(down, t, shape_text({t.shape[0], t.shape[2], t.shape[1]}) + " like the gate_up tensor");
}

/// Models have biases on both linear layers or on none: one alone is what a damaged file has.
Status agree_on_biases(const std::string& gate, const std::string& down, bool stacked,
                       const LinearWeights& weight1, const LinearWeights& weight2) {
  if (weight1.bias.empty() == weight2.bias.empty()) return Status::ok();
  return Status(Code::kInvalidArgument, "tensor '" + (weight1.bias.empty() ? gate : down) +
                                            (stacked ? "_bias" : ".bias") +
                                            "' is missing: expected biases on both layers or on none");
}

/// An expert of `count` times the width as `count` experts, whose results add up to its own.
Status split_shared(const std::string& name, int64_t count, int64_t width, LinearWeights& weight1,
                    LinearWeights& weight2) {
  if (count == 1) return Status::ok();
  if (weight1.scale_group != 0) {
    return Status(Code::kUnsupported,
                  name + ": " + std::to_string(count) + " shared experts: expected one, or bfloat16 weights");
  }
  for (std::vector<TensorView>* list : {&weight1.weight, &weight1.up, &weight2.weight}) {
    const TensorView whole = (*list)[0];
    const int d = list == &weight2.weight ? 1 : 0;  // of the width
    list->clear();
    for (int64_t i = 0; i < count; ++i) {
      TensorView part = whole;
      part.data = static_cast<const uint16_t*>(whole.data) + i * width * whole.strides[d];
      part.shape[d] = width;
      list->push_back(part);
    }
  }
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<MoeCheckpoint>> MoeCheckpoint::open(const std::string& path) {
  std::unique_ptr<MoeCheckpoint> result(new MoeCheckpoint);
  auto tensors = TensorSet::open(path);
  if (!tensors) return tensors.status();
  result->tensors_ = std::move(*tensors);
  auto config =
      read_moe_config((std::filesystem::path(result->tensors_->directory()) / "config.json").string());
  if (!config) return config.status();
  result->config_ = std::move(*config);
  for (int64_t i = 0; i < result->config_.layers; ++i) {
    if (find_place(*result->tensors_, i).scheme != nullptr) result->layers_.push_back(i);
  }
  if (result->layers_.empty()) {
    return Status(Code::kUnsupported, path + " has no expert layers: expected tensors such as 'model." +
                                          fill(kSchemes[0].gate, 0, 0) + ".weight' or 'model." +
                                          fill(kSchemes[1].gate, 0, 0) + "'");
  }
  return result;
}

Result<MoeLayer> MoeCheckpoint::layer(int64_t index) const {
  const Place place = find_place(*tensors_, index);
  if (place.scheme == nullptr) {
    std::string known;
    for (int64_t i : layers_) known += (known.empty() ? "" : ", ") + std::to_string(i);
    return Status(Code::kInvalidArgument, "layer = " + std::to_string(index) + ": expected one of " + known);
  }
  const Scheme& scheme = *place.scheme;
  const auto [experts, hidden, width] = std::tuple(config_.num_experts, config_.hidden, config_.intermediate);
  auto memory = std::make_shared<LayerMemory>();
  MoeLayer layer;
  layer.index = index;
  layer.memory = memory;
  auto floats = [&](const std::string& name, const std::vector<int64_t>& shape, bool required,
                    TensorView& out) -> Status {
    auto read = read_floats(*tensors_, name, shape, required, *memory);
    if (!read) return read.status();
    out = *read;
    return Status::ok();
  };
  const std::string router = place.name(scheme.router, index);
  MEGAMOE_RETURN_IF_ERROR(floats(router + ".weight", {experts, hidden}, true, layer.router));
  MEGAMOE_RETURN_IF_ERROR(floats(router + ".bias", {experts}, false, layer.router_bias));
  for (const char* correction : scheme.corrections) {
    if (correction == nullptr || layer.correction_bias.present()) continue;
    MEGAMOE_RETURN_IF_ERROR(floats(place.name(correction, index), {experts}, false, layer.correction_bias));
  }
  layer.scoring = config_.routing.scoring;
  if (layer.scoring.empty()) layer.scoring = layer.correction_bias.present() ? "sigmoid" : "softmax";

  auto read = [&](LinearNames names, LinearShape shape, LinearWeights& out) -> Status {
    auto weights = read_linear({*tensors_, config_.quantisation, std::move(names), shape}, *memory);
    if (!weights) return weights.status();
    out = std::move(*weights);
    return Status::ok();
  };
  LinearNames names1, names2;
  names1.stacked = names2.stacked = is_stacked(scheme);
  for (int64_t e = 0; e < (names1.stacked ? 1 : experts); ++e) {
    names1.first.push_back(place.name(scheme.gate, index, e));
    if (scheme.up != nullptr) names1.up.push_back(place.name(scheme.up, index, e));
    names2.first.push_back(place.name(scheme.down, index, e));
  }
  const std::string gate = names1.first[0], down = names2.first[0];
  const int64_t outputs = scheme.up == nullptr ? 2 * width : width;
  MEGAMOE_RETURN_IF_ERROR(read(std::move(names1), {experts, outputs, hidden}, layer.weight1));
  MEGAMOE_RETURN_IF_ERROR(read(std::move(names2), {experts, hidden, width}, layer.weight2));
  MEGAMOE_RETURN_IF_ERROR(agree_on_biases(gate, down, is_stacked(scheme), layer.weight1, layer.weight2));
  layer.weight1.interleave = scheme.interleave;
  if (is_stacked(scheme)) MEGAMOE_RETURN_IF_ERROR(agree_on_orientation(down, layer.weight1, layer.weight2));

  const int64_t count = config_.shared_experts;
  if (scheme.shared == nullptr || count == 0) return layer;
  const std::string shared = place.name(scheme.shared, index);
  if (find_form(*tensors_, shared + ".gate_proj", false) == nullptr) return layer;
  MEGAMOE_RETURN_IF_ERROR(read({{shared + ".gate_proj"}, {shared + ".up_proj"}}, {1, count * width, hidden},
                               layer.shared_weight1));
  MEGAMOE_RETURN_IF_ERROR(
      read({{shared + ".down_proj"}, {}}, {1, hidden, count * width}, layer.shared_weight2));
  MEGAMOE_RETURN_IF_ERROR(
      split_shared("tensors '" + shared + "'", count, width, layer.shared_weight1, layer.shared_weight2));
  return layer;
}

LinearWeights expert_range(const LinearWeights& weights, int64_t begin, int64_t count) {
  auto cut = [&](const std::vector<TensorView>& list, int stacked_dims) {
    if (list.size() != 1 || list[0].dims != stacked_dims) {
      if (list.empty()) return list;
      return std::vector<TensorView>(list.begin() + begin, list.begin() + begin + count);
    }
    TensorView t = list[0];
    t.data = static_cast<const std::byte*>(t.data) + begin * t.strides[0] * dtype_bits(t.dtype) / 8;
    t.shape[0] = count;
    return std::vector<TensorView>{t};
  };
  LinearWeights result = weights;  // order, layout and groups are those of all experts
  result.weight = cut(weights.weight, 3);
  result.up = cut(weights.up, 3);
  // One number per channel, one per channel and group of the reduction, or E8M0 pairs.
  const bool pairs = !weights.scale.empty() && weights.scale[0].dtype == DType::kFloat8E8M0;
  result.scale = cut(weights.scale, pairs ? 4 : weights.scale_group != 0 ? 3 : 2);
  result.zero = cut(weights.zero, 3);
  result.bias = cut(weights.bias, 2);
  result.added_bias = cut(weights.added_bias, 2);
  return result;
}

}  // namespace megamoe::checkpoint
