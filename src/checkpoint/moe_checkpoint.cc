// The mixture-of-experts layers of a Hugging Face checkpoint: names and shapes of the known ways to store
// them.
#include "checkpoint/moe_checkpoint.h"

#include <filesystem>

#include "base/json.h"

namespace megamoe::checkpoint {
namespace {

/// How a family of models names its expert tensors. {L} is the layer, {E} the expert; without {E} a tensor
/// stacks all experts. `up` null: `gate` holds gate and up side by side.
struct Scheme {
  const char* gate;
  const char* up;
  const char* down;
  const char* router;
};
constexpr Scheme kSchemes[] = {
    {"layers.{L}.mlp.experts.{E}.gate_proj.weight", "layers.{L}.mlp.experts.{E}.up_proj.weight",
     "layers.{L}.mlp.experts.{E}.down_proj.weight", "layers.{L}.mlp.gate.weight"},
    {"layers.{L}.mlp.experts.gate_up_proj", nullptr, "layers.{L}.mlp.experts.down_proj",
     "layers.{L}.mlp.gate.weight"},
    {"layers.{L}.block_sparse_moe.experts.{E}.w1.weight", "layers.{L}.block_sparse_moe.experts.{E}.w3.weight",
     "layers.{L}.block_sparse_moe.experts.{E}.w2.weight", "layers.{L}.block_sparse_moe.gate.weight"},
    {"layers.{L}.block_sparse_moe.experts.gate_up_proj", nullptr,
     "layers.{L}.block_sparse_moe.experts.down_proj", "layers.{L}.block_sparse_moe.gate.weight"},
};
constexpr const char* kPrefixes[] = {"model.", "model.language_model.", ""};

/// A size in config.json under one of several names, most specific first.
struct SizeKey {
  int64_t MoeConfig::*field;
  int64_t largest;
  const char* names[3];
};
constexpr int64_t kMostLayers = 65536;  // each is looked for by name
constexpr int64_t kLargest = int64_t{1} << 31;
constexpr SizeKey kSizes[] = {
    {&MoeConfig::layers, kMostLayers, {"num_hidden_layers"}},
    {&MoeConfig::hidden, kLargest, {"hidden_size"}},
    {&MoeConfig::intermediate, kLargest, {"moe_intermediate_size", "intermediate_size"}},
    {&MoeConfig::num_experts, kLargest, {"num_experts", "num_local_experts", "n_routed_experts"}},
    {&MoeConfig::top_k, kLargest, {"num_experts_per_tok", "top_k"}},
};

constexpr struct {
  const char* hidden_act;
  const char* activation;
} kActivations[] = {{"silu", "swiglu"}, {"swish", "swiglu"}};

std::string fill(const std::string& pattern, int64_t layer, int64_t expert) {
  std::string name = pattern;
  const std::pair<const char*, int64_t> values[] = {{"{L}", layer}, {"{E}", expert}};
  for (const auto& [mark, value] : values) {
    if (const size_t at = name.find(mark); at != std::string::npos)
      name.replace(at, 3, std::to_string(value));
  }
  return name;
}

bool stacked(const std::string& pattern) {
  return pattern.find("{E}") == std::string::npos;
}

bool has_shape(const TensorView& t, std::initializer_list<int64_t> shape) {
  if (t.dims != static_cast<int>(shape.size())) return false;
  int d = 0;
  for (int64_t extent : shape) {
    if (t.shape[d++] != extent) return false;
  }
  return true;
}

std::string shape_text(std::initializer_list<int64_t> shape) {
  return TensorView(nullptr, DType::kUInt8, shape).shape_text();
}

Status wrong_shape(const std::string& name, const TensorView& t, const std::string& expected) {
  return Status(Code::kDataLoss,
                "tensor '" + name + "' has shape " + t.shape_text() + ": expected " + expected);
}

Result<MoeConfig> read_config(const std::string& path) {
  auto json = base::parse_json_file(path);
  if (!json) return json.status();
  if (!json->is_object()) return Status(Code::kDataLoss, path + ": expected an object");
  const nlohmann::json* root = &*json;
  if (root->contains("text_config") && (*root)["text_config"].is_object()) root = &(*root)["text_config"];

  MoeConfig config;
  if (json->contains("model_type") && (*json)["model_type"].is_string()) {
    config.model_type = (*json)["model_type"].get<std::string>();
  }
  for (const SizeKey& key : kSizes) {
    const char* found = nullptr;
    for (const char* name : key.names) {
      if (found == nullptr && name != nullptr && root->contains(name)) found = name;
    }
    if (found == nullptr) {
      return Status(Code::kDataLoss,
                    path + ": " + key.names[0] + " is missing: expected a mixture-of-experts model");
    }
    const auto& value = (*root)[found];
    if (!base::to_size(value, config.*key.field) || config.*key.field < 1 ||
        config.*key.field > key.largest) {
      return Status(Code::kDataLoss, path + ": " + found + " = " + base::json_text(value) +
                                         ": expected 1 to " + std::to_string(key.largest));
    }
  }
  if (config.top_k > config.num_experts) {
    return Status(Code::kDataLoss, path + ": num_experts_per_tok = " + std::to_string(config.top_k) +
                                       ": expected at most " + std::to_string(config.num_experts) +
                                       " experts");
  }
  const auto act = root->contains("hidden_act") ? (*root)["hidden_act"] : nlohmann::json("silu");
  for (const auto& row : kActivations) {
    if (act == row.hidden_act) config.activation = row.activation;
  }
  if (config.activation.empty()) {
    return Status(Code::kUnsupported, path + ": hidden_act = " + base::json_text(act) + ": expected silu");
  }
  return config;
}

constexpr const char* kBlockScales = "_scale_inv";
constexpr int64_t kBlock = 128;

int64_t blocks_of(int64_t length) {
  return (length + kBlock - 1) / kBlock;
}

/// Scales of the blocks of weight `name` (rows, columns).
Result<TensorView> block_scales(const TensorSet& tensors, const std::string& name, int64_t rows,
                                int64_t columns) {
  const std::string scale_name = name + kBlockScales;
  auto scales = tensors.find(scale_name);
  if (!scales) return scales.status();
  if (scales->dtype != DType::kFloat32) {
    return Status(Code::kDataLoss,
                  "tensor '" + scale_name + "' has type " + dtype_name(scales->dtype) + ": expected float32");
  }
  if (!has_shape(*scales, {blocks_of(rows), blocks_of(columns)})) {
    return wrong_shape(scale_name, *scales, shape_text({blocks_of(rows), blocks_of(columns)}));
  }
  return *scales;
}

Status append_scales(const TensorSet& tensors, const std::string& name, int64_t rows, int64_t columns,
                     std::vector<float>& out) {
  auto scales = block_scales(tensors, name, rows, columns);
  if (!scales) return scales.status();
  const auto* const values = static_cast<const float*>(scales->data);
  out.insert(out.end(), values, values + scales->elements());
  return Status::ok();
}

}  // namespace

Result<std::unique_ptr<MoeCheckpoint>> MoeCheckpoint::open(const std::string& path) {
  std::unique_ptr<MoeCheckpoint> result(new MoeCheckpoint);
  auto tensors = TensorSet::open(path);
  if (!tensors) return tensors.status();
  result->tensors_ = std::move(*tensors);
  auto config = read_config((std::filesystem::path(result->tensors_->directory()) / "config.json").string());
  if (!config) return config.status();
  result->config_ = std::move(*config);
  for (int64_t i = 0; i < result->config_.layers; ++i) {
    bool found = false;
    for (const Scheme& scheme : kSchemes) {
      for (const char* prefix : kPrefixes) {
        found = found || result->tensors_->has(prefix + fill(scheme.gate, i, 0));
      }
    }
    if (found) result->layers_.push_back(i);
  }
  if (result->layers_.empty()) {
    return Status(Code::kUnsupported, path + " has no expert layers: expected tensors such as 'model." +
                                          fill(kSchemes[0].gate, 0, 0) + "' or 'model." +
                                          fill(kSchemes[1].gate, 0, 0) + "'");
  }
  return result;
}

Result<MoeLayer> MoeCheckpoint::layer(int64_t index) const {
  const auto [experts, hidden, width] = std::tuple(config_.num_experts, config_.hidden, config_.intermediate);
  for (const Scheme& scheme : kSchemes) {
    for (const std::string prefix : kPrefixes) {
      if (!tensors_->has(prefix + fill(scheme.gate, index, 0))) continue;
      MoeLayer layer;
      layer.index = index;
      const std::string router = prefix + fill(scheme.router, index, 0);
      auto gate_weight = tensors_->find(router);
      if (!gate_weight) return gate_weight.status();
      if (!has_shape(*gate_weight, {experts, hidden})) {
        return wrong_shape(router, *gate_weight, shape_text({experts, hidden}));
      }
      layer.router = *gate_weight;

      if (stacked(scheme.gate)) {
        const std::string name1 = prefix + fill(scheme.gate, index, 0),
                          name2 = prefix + fill(scheme.down, index, 0);
        auto gate_up = tensors_->find(name1), down = tensors_->find(name2);
        if (!gate_up) return gate_up.status();
        if (!down) return down.status();
        // (E, out, in) or (E, in, out): the two tensors are stored alike, so where one fits both ways the
        // other decides.
        const bool last1 = has_shape(*gate_up, {experts, 2 * width, hidden});
        const bool first1 = has_shape(*gate_up, {experts, hidden, 2 * width});
        const bool last2 = has_shape(*down, {experts, hidden, width});
        const bool first2 = has_shape(*down, {experts, width, hidden});
        const std::string out_in = " (output, input) or both tensors (input, output)";
        if (!last1 && !first1)
          return wrong_shape(name1, *gate_up, shape_text({experts, 2 * width, hidden}) + out_in);
        if (!((last1 && last2) || (first1 && first2))) {
          return wrong_shape(name2, *down, shape_text({experts, hidden, width}) + out_in);
        }
        layer.weight1.weight = {*gate_up};
        layer.weight2.weight = {*down};
        layer.weight1.k_last = layer.weight2.k_last = last1 && last2;
        return layer;
      }
      layer.weight1.k_last = layer.weight2.k_last = true;
      const bool blocks = tensors_->has(prefix + fill(scheme.gate, index, 0) + kBlockScales);
      if (blocks) layer.weight1.scale_group = layer.weight2.scale_group = kBlock;
      for (int64_t e = 0; e < experts; ++e) {
        const struct {
          const char* pattern;
          int64_t rows, columns;
          std::vector<TensorView>& list;
        } parts[] = {{scheme.gate, width, hidden, layer.weight1.weight},
                     {scheme.up, width, hidden, layer.weight1.up},
                     {scheme.down, hidden, width, layer.weight2.weight}};
        for (const auto& part : parts) {
          const std::string name = prefix + fill(part.pattern, index, e);
          auto tensor = tensors_->find(name);
          if (!tensor) return tensor.status();
          if (!has_shape(*tensor, {part.rows, part.columns})) {
            return wrong_shape(name, *tensor, shape_text({part.rows, part.columns}));
          }
          part.list.push_back(*tensor);
        }
        if (!blocks) continue;
        std::vector<float> scales;  // gate, then up
        for (const char* pattern : {scheme.gate, scheme.up}) {
          MEGAMOE_RETURN_IF_ERROR(
              append_scales(*tensors_, prefix + fill(pattern, index, e), width, hidden, scales));
        }
        const std::lock_guard lock(joined_mutex_);
        joined_.push_back(std::move(scales));
        layer.weight1.scale.push_back(
            TensorView(joined_.back().data(), DType::kFloat32, {2 * blocks_of(width), blocks_of(hidden)}));
        auto down = block_scales(*tensors_, prefix + fill(scheme.down, index, e), hidden, width);
        if (!down) return down.status();
        layer.weight2.scale.push_back(*down);
      }
      return layer;
    }
  }
  std::string known;
  for (int64_t i : layers_) known += (known.empty() ? "" : ", ") + std::to_string(i);
  return Status(Code::kInvalidArgument, "layer = " + std::to_string(index) + ": expected one of " + known);
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
