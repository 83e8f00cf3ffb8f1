// The mixture-of-experts layers of a Hugging Face checkpoint: the names under which they stand, and what one
// layer consists of.
#include "checkpoint/moe_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "checkpoint/shared_experts.h"
#include "checkpoint/stored_linear.h"

namespace megamoe::checkpoint {
namespace {

/// The linear layers of shared experts behind their common name; `up` null: `gate` holds gate and up.
struct Parts {
  const char *gate, *up, *down;
};
constexpr Parts kProjections = {".gate_proj", ".up_proj", ".down_proj"};
constexpr Parts kLinears = {".input_linear", nullptr, ".output_linear"};

/// How a family of models names its expert tensors. {L} is the layer, {E} the expert; without {E} a tensor
/// stacks all experts. `up` null: `gate` holds gate and up. The suffixes of the stored forms follow these
/// names.
struct Scheme {
  const char* gate;
  const char* up;
  const char* down;
  const char* router;          ///< .weight and, where it is there, .bias
  const char* corrections[2];  ///< added to the scores for the choice
  const char* shared;          ///< experts that every token passes; null = none
  Parts shared_parts;
  const char* gated;   ///< the projections of one with a gate, `gated` + "_gate.weight"; null = none
  int64_t interleave;  ///< of gate and up in `gate`
  bool biased;         ///< router and experts have biases
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

/// Whether any weight of any expert of a layer is there, so that what is missing can be named.
bool has_experts(const TensorSet& tensors, const Place& place, int64_t layer) {
  for (const char* pattern : {place.scheme->gate, place.scheme->up, place.scheme->down}) {
    if (pattern == nullptr) continue;
    const std::string_view whole(pattern);
    const size_t mark = whole.find("{E}");
    if (mark == std::string_view::npos) {
      const auto ends = [](std::string_view rest) { return rest.empty() || rest.front() == '_'; };
      if (tensors.any_of(place.name(pattern, layer), ends)) return true;
      continue;
    }
    const std::string leaf = std::string(whole.substr(mark + 3)) + ".";
    const auto fits = [&](std::string_view rest) {
      const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
      return digits > 0 && rest.substr(digits).starts_with(leaf);
    };
    if (tensors.any_of(place.name(std::string(whole.substr(0, mark)).c_str(), layer), fits)) return true;
  }
  return false;
}

/// Where a layer stands. Schemes share names of experts: one whose router is there comes first, then one that
/// has biases where biases are.
Place find_place(const TensorSet& tensors, int64_t layer) {
  Place best;
  int best_score = -1;
  for (const Scheme& scheme : kSchemes) {
    for (const char* prefix : kPrefixes) {
      const Place place{&scheme, prefix};
      if (!has_experts(tensors, place, layer)) continue;
      const bool biases = tensors.has(place.name(scheme.gate, layer) + "_bias") ||
                          tensors.has(place.name(scheme.down, layer) + "_bias");
      const int score = (tensors.has(place.name(scheme.router, layer) + ".weight") ? 2 : 0) +
                        (biases == scheme.biased ? 1 : 0);
      if (score <= best_score) continue;
      best = place;
      best_score = score;
    }
  }
  return best;
}

/// Stacked tensors are stored alike: where one fits both ways the other decides.
Status agree_on_orientation(const TensorSet& tensors, const std::string& down, LinearWeights& weight1,
                            LinearWeights& weight2) {
  if (weight1.weight[0].dtype == DType::kFloat4E2M1) return Status::ok();
  auto square = [](const LinearWeights& w) { return w.weight[0].shape[1] == w.weight[0].shape[2]; };
  if (square(weight1)) weight1.k_last = weight2.k_last;
  if (square(weight2)) weight2.k_last = weight1.k_last;
  if (weight1.k_last == weight2.k_last) return Status::ok();
  const TensorView& t = weight2.weight[0];
  return wrong_shape(tensors, down, t,
                     shape_text({t.shape[0], t.shape[2], t.shape[1]}) + " like the gate_up tensor");
}

/// Models have biases on both linear layers or on none: one alone is what a damaged file has.
Status agree_on_biases(const TensorSet& tensors, const LinearNames& names1, const LinearNames& names2,
                       bool biased, const LinearWeights& weight1, const LinearWeights& weight2) {
  const bool expected = biased || !weight1.bias.empty() || !weight2.bias.empty();
  const LinearNames* const lacking = !expected              ? nullptr
                                     : weight1.bias.empty() ? &names1
                                     : weight2.bias.empty() ? &names2
                                                            : nullptr;
  if (lacking == nullptr) return Status::ok();
  const std::string name = lacking->first[0] + (lacking->stacked ? "_bias" : ".bias");
  return find_tensor(tensors, name, lacking->owners[0] + ", biases on both linear layers").status();
}

/// Types of both linear layers, which one scenario multiplies.
Status agree_on_types(const TensorSet& tensors, const std::string& tensor, const LinearWeights& weight1,
                      const LinearWeights& weight2) {
  const TensorView &a = weight1.weight[0], &b = weight2.weight[0];
  if (a.dtype == b.dtype) return Status::ok();
  return wrong_type(tensors, tensor, b, dtype_name(a.dtype) + std::string(" like the weights of Linear1"));
}

std::string in_layer(int64_t index) {
  return " in layer " + std::to_string(index);
}

/// The router of a layer, its biases, and how it scores.
Status read_router(const TensorSet& tensors, const MoeConfig& config, const Place& place, LayerMemory& memory,
                   MoeLayer& layer) {
  const Scheme& scheme = *place.scheme;
  const int64_t experts = config.num_experts;
  const std::string owner = "the router" + in_layer(layer.index);
  const auto floats = [&](const std::string& name, const std::vector<int64_t>& shape, bool required,
                          TensorView& out) -> Status {
    if (!required && !tensors.has(name)) return Status::ok();
    auto read = find_floats(tensors, name, owner, shape, memory);
    if (!read) return read.status();
    out = *read;
    return Status::ok();
  };
  const std::string router = place.name(scheme.router, layer.index);
  MEGAMOE_RETURN_IF_ERROR(floats(router + ".weight", {experts, config.hidden}, true, layer.router));
  MEGAMOE_RETURN_IF_ERROR(floats(router + ".bias", {experts}, scheme.biased, layer.router_bias));
  for (const char* correction : scheme.corrections) {
    if (correction == nullptr || layer.correction_bias.present()) continue;
    const std::string name = place.name(correction, layer.index);
    auto found = tensors.find(name);
    const bool row = found && found->dims == 2;  // ERNIE keeps one of (1, E)
    MEGAMOE_RETURN_IF_ERROR(floats(name, row ? std::vector<int64_t>{1, experts} : std::vector{experts}, false,
                                   layer.correction_bias));
    if (row) layer.correction_bias = TensorView(layer.correction_bias.data, DType::kFloat32, {experts});
  }
  const char* const usual = scheme.corrections[config.routing.usual_correction];
  if (config.routing.corrected && usual != nullptr && !layer.correction_bias.present()) {
    return find_tensor(tensors, place.name(usual, layer.index), owner).status();
  }
  layer.scoring = config.routing.scoring;
  if (layer.scoring.empty()) layer.scoring = layer.correction_bias.present() ? "sigmoid" : "softmax";
  return Status::ok();
}

/// Names of Linear1 and Linear2.
struct PairNames {
  LinearNames linear1, linear2;
};

PairNames routed_names(const Place& place, int64_t experts, int64_t index) {
  const Scheme& scheme = *place.scheme;
  PairNames names;
  names.linear1.stacked = names.linear2.stacked = is_stacked(scheme);
  for (int64_t e = 0; e < (names.linear1.stacked ? 1 : experts); ++e) {
    names.linear1.first.push_back(place.name(scheme.gate, index, e));
    if (scheme.up != nullptr) names.linear1.up.push_back(place.name(scheme.up, index, e));
    names.linear2.first.push_back(place.name(scheme.down, index, e));
    names.linear1.owners.push_back(names.linear1.stacked
                                       ? "all " + std::to_string(experts) + " experts" + in_layer(index)
                                       : "expert " + std::to_string(e) + " of " + std::to_string(experts) +
                                             in_layer(index));
  }
  names.linear2.owners = names.linear1.owners;
  return names;
}

PairNames shared_names(const Place& place, int64_t index) {
  const Parts& parts = place.scheme->shared_parts;
  const std::string shared = place.name(place.scheme->shared, index);
  const std::vector<std::string> owners = {"the shared experts" + in_layer(index)};
  PairNames names{{{shared + parts.gate}, {}, owners}, {{shared + parts.down}, {}, owners}};
  if (parts.up != nullptr) names.linear1.up = {shared + parts.up};
  return names;
}

/// Shared experts that `missing` in config.json does not count would be left out without a word.
Status expect_none(const TensorSet& tensors, const Place& place, const char* shared, int64_t index,
                   const std::string& missing) {
  if (shared == nullptr) return Status::ok();
  const std::string prefix = place.name(shared, index) + ".";
  if (!tensors.any_of(prefix, [](std::string_view) { return true; })) return Status::ok();
  return Status(Code::kDataLoss, tensors.directory() + " has tensors '" + prefix +
                                     "*' of shared experts, but " + missing +
                                     " missing or 0 in config.json: expected their number or width");
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

Result<MoeLayer> MoeCheckpoint::layer(int64_t index, bool gated) const {
  const Place place = find_place(*tensors_, index);
  if (place.scheme == nullptr) {
    std::string known;
    for (int64_t i : layers_) known += (known.empty() ? "" : ", ") + std::to_string(i);
    return Status(Code::kInvalidArgument, "layer = " + std::to_string(index) + ": expected one of " + known);
  }
  const Scheme& scheme = *place.scheme;
  const TensorSet& tensors = *tensors_;
  const auto [experts, hidden, width] = std::tuple(config_.num_experts, config_.hidden, config_.intermediate);
  auto memory = std::make_shared<LayerMemory>();
  MoeLayer layer;
  layer.index = index;
  layer.memory = memory;
  MEGAMOE_RETURN_IF_ERROR(read_router(tensors, config_, place, *memory, layer));

  const auto [names1, names2] = routed_names(place, experts, index);
  const int64_t outputs = scheme.up == nullptr ? 2 * width : width;
  MEGAMOE_RETURN_IF_ERROR(
      read_pair(names1, {experts, outputs, hidden}, names2, width, *memory, layer.weight1, layer.weight2));
  MEGAMOE_RETURN_IF_ERROR(
      agree_on_biases(tensors, names1, names2, scheme.biased, layer.weight1, layer.weight2));
  layer.weight1.interleave = scheme.interleave;
  if (is_stacked(scheme)) {
    MEGAMOE_RETURN_IF_ERROR(agree_on_orientation(tensors, names2.first[0], layer.weight1, layer.weight2));
  }
  if (config_.gated_shared == 0) {
    MEGAMOE_RETURN_IF_ERROR(
        expect_none(tensors, place, scheme.gated, index, "shared_expert_intermediate_size is"));
  } else if (gated && scheme.gated != nullptr) {
    MEGAMOE_RETURN_IF_ERROR(append_gated(place.name(scheme.gated, index), layer, *memory));
  }

  const int64_t count = config_.shared_experts;
  if (count == 0) {
    MEGAMOE_RETURN_IF_ERROR(
        expect_none(tensors, place, scheme.shared, index, "n_shared_experts or shared_intermediate_size is"));
  }
  if (scheme.shared == nullptr || count == 0) return layer;
  const auto [shared1, shared2] = shared_names(place, index);
  const int64_t shared_outputs = (scheme.shared_parts.up == nullptr ? 2 : 1) * count * width;
  MEGAMOE_RETURN_IF_ERROR(read_pair(shared1, {1, shared_outputs, hidden}, shared2, count * width, *memory,
                                    layer.shared_weight1, layer.shared_weight2));
  MEGAMOE_RETURN_IF_ERROR(split_shared(place.name(scheme.shared, index), count, width, layer.shared_weight1,
                                       layer.shared_weight2, *memory));
  return layer;
}

Status MoeCheckpoint::append_gated(const std::string& name, MoeLayer& layer, LayerMemory& memory) const {
  const int64_t hidden = config_.hidden, width = config_.intermediate, whole = config_.gated_shared;
  if (whole % width != 0) {
    return Status(Code::kUnsupported, "shared_expert_intermediate_size = " + std::to_string(whole) +
                                          ": expected a multiple of " + std::to_string(width) +
                                          ", the width of a routed expert");
  }
  const std::vector<std::string> owners = {"the shared expert in layer " + std::to_string(layer.index)};
  auto gate = find_floats(*tensors_, name + "_gate.weight", owners[0], {1, hidden}, memory);
  if (!gate) return gate.status();
  LinearWeights weight1, weight2;
  MEGAMOE_RETURN_IF_ERROR(read_pair({{name + ".gate_proj"}, {name + ".up_proj"}, owners}, {1, whole, hidden},
                                    {{name + ".down_proj"}, {}, owners}, whole, memory, weight1, weight2));
  MEGAMOE_RETURN_IF_ERROR(split_shared(name, whole / width, width, weight1, weight2, memory));
  MEGAMOE_RETURN_IF_ERROR(append_experts(name, weight1, 2, layer.weight1, memory));
  MEGAMOE_RETURN_IF_ERROR(append_experts(name, weight2, 1, layer.weight2, memory));
  layer.gated = whole / width;
  layer.shared_gate = *gate;
  return Status::ok();
}

Status MoeCheckpoint::read_pair(const LinearNames& names1, LinearShape shape, const LinearNames& names2,
                                int64_t width, LayerMemory& memory, LinearWeights& weight1,
                                LinearWeights& weight2) const {
  auto form1 = find_form(*tensors_, names1, nullptr);
  if (!form1) return form1.status();
  auto form2 = find_form(*tensors_, names2, *form1);
  if (!form2) return form2.status();
  form1 = find_form(*tensors_, names1, *form2);
  auto read1 = read_linear({*tensors_, config_.quantisation, names1, shape, **form1}, memory);
  if (!read1) return read1.status();
  auto read2 = read_linear(
      {*tensors_, config_.quantisation, names2, {shape.experts, shape.k, width}, **form2}, memory);
  if (!read2) return read2.status();
  weight1 = std::move(*read1);
  weight2 = std::move(*read2);
  return agree_on_types(*tensors_, names2.first[0] + (*form2)->suffix, weight1, weight2);
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
