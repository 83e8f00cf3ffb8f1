// Reads config.json by tables: which keys hold which sizes, and what families of models leave unsaid.
#include "checkpoint/moe_config.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "base/json.h"

namespace megamoe::checkpoint {
namespace {

using Json = nlohmann::json;

/// A size under one of several names, most specific first.
struct SizeKey {
  int64_t MoeConfig::*field;
  int64_t largest;
  bool required;
  const char* names[4];
};
constexpr int64_t kMostLayers = 65536;  // each is looked for by name
constexpr int64_t kLargest = int64_t{1} << 31;
constexpr int64_t kMostShared = 64;
constexpr SizeKey kSizes[] = {
    {&MoeConfig::layers, kMostLayers, true, {"num_hidden_layers"}},
    {&MoeConfig::hidden, kLargest, true, {"hidden_size"}},
    {&MoeConfig::intermediate, kLargest, true, {"moe_intermediate_size", "intermediate_size"}},
    {&MoeConfig::num_experts,
     kLargest,
     true,
     {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}},
    {&MoeConfig::top_k, kLargest, true, {"num_experts_per_tok", "num_experts_per_token", "top_k", "moe_k"}},
    {&MoeConfig::shared_experts,
     kMostShared,
     false,
     {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}},
    {&MoeConfig::shared_width, kLargest, false, {"shared_intermediate_size"}},
    {&MoeConfig::gated_shared, kLargest, false, {"shared_expert_intermediate_size"}},
};

/// Activations by model type (null: any other) and hidden_act.
constexpr struct {
  const char* model;
  const char* hidden_act;
  const char* activation;
} kActivations[] = {
    {"gpt_oss", "silu", "swigluoai"}, {nullptr, "silu", "swiglu"}, {nullptr, "swish", "swiglu"}};
constexpr double kOaiLimit = 7, kOaiAlpha = 1.702;  // gpt-oss where config.json does not say

/// Models whose router weights stay as they are unless norm_topk_prob says otherwise.
constexpr const char* kNotRenormalised[] = {"deepseek_v2", "olmoe", "qwen2_moe", "qwen3_moe"};

/// Models whose layers have a correction bias, whatever else config.json says, and which name of a scheme for
/// it is theirs.
constexpr struct {
  const char* model;
  int name;
} kCorrected[] = {
    {"deepseek_v3", 0}, {"ernie4_5_moe", 1}, {"glm4_moe", 0}, {"kimi_k2", 0}, {"minimax_m2", 0}};

/// Models whose scores are softmax in spite of a correction bias.
constexpr const char* kSoftmax[] = {"ernie4_5_moe"};

/// topk_method and what groups are chosen by.
constexpr struct {
  const char* method;
  const char* group_score;  ///< null: groups are not looked at
} kChoices[] = {{"greedy", nullptr}, {"noaux_tc", "top2_sum"}, {"group_limited_greedy", "max"}};

/// Models without groups where topk_method is not there, whatever n_group says.
constexpr const char* kGreedy[] = {"deepseek_v2"};

bool is_one_of(std::span<const char* const> models, const std::string& model) {
  return std::find(models.begin(), models.end(), model) != models.end();
}

/// The value of the first of `keys` that is there and not null.
const Json* find(const Json& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (object.contains(key) && !object[key].is_null()) return &object[key];
  }
  return nullptr;
}

class Reader {
 public:
  Reader(const std::string& path, const Json& root) : path_(path), root_(root) {}

  Status wrong(const std::string& key, const Json& value, const std::string& expected,
               Code code = Code::kDataLoss) const {
    return Status(code, path_ + ": " + key + " = " + base::json_text(value) + ": expected " + expected);
  }

  Status sizes(MoeConfig& config) const {
    for (const SizeKey& key : kSizes) {
      const char* found = nullptr;
      for (const char* name : key.names) {
        if (found == nullptr && name != nullptr && find(root_, {name}) != nullptr) found = name;
      }
      if (found == nullptr && !key.required) continue;
      if (found == nullptr) {
        return Status(Code::kDataLoss,
                      path_ + ": " + key.names[0] + " is missing: expected a mixture-of-experts model");
      }
      const int64_t least = key.required ? 1 : 0;
      const Json& value = root_[found];
      if (!base::to_size(value, config.*key.field) || config.*key.field < least ||
          config.*key.field > key.largest) {
        return wrong(found, value, std::to_string(least) + " to " + std::to_string(key.largest));
      }
    }
    if (config.top_k > config.num_experts) {
      return Status(Code::kDataLoss, path_ + ": num_experts_per_tok = " + std::to_string(config.top_k) +
                                         ": expected at most " + std::to_string(config.num_experts) +
                                         " experts");
    }
    return shared_width(config);
  }

  /// Shared experts of a given width as so many of the width of a routed one.
  Status shared_width(MoeConfig& config) const {
    if (config.shared_width == 0) return Status::ok();
    if (config.shared_width % config.intermediate != 0 ||
        config.shared_width / config.intermediate > kMostShared) {
      return wrong("shared_intermediate_size", config.shared_width,
                   "a multiple of " + std::to_string(config.intermediate) +
                       ", the width of a routed expert, at most " + std::to_string(kMostShared) + " of them",
                   Code::kUnsupported);
    }
    config.shared_experts = config.shared_width / config.intermediate;
    return Status::ok();
  }

  Status number(const char* key, double& out) const {
    const Json* value = find(root_, {key});
    if (value == nullptr) return Status::ok();
    if (!value->is_number()) return wrong(key, *value, "a number");
    out = value->get<double>();
    return Status::ok();
  }

  Status activation(MoeConfig& config) const {
    const Json* given = find(root_, {"hidden_act"});
    const Json act = given == nullptr ? Json("silu") : *given;
    const auto* row = std::find_if(std::begin(kActivations), std::end(kActivations), [&](const auto& r) {
      return (r.model == nullptr || config.model_type == r.model) && act == r.hidden_act;
    });
    if (row == std::end(kActivations)) return wrong("hidden_act", act, "silu", Code::kUnsupported);
    config.activation.name = row->activation;
    if (config.activation.name != "swigluoai") return Status::ok();
    double limit = kOaiLimit, alpha = kOaiAlpha;
    MEGAMOE_RETURN_IF_ERROR(number("swiglu_limit", limit));
    MEGAMOE_RETURN_IF_ERROR(number("swiglu_alpha", alpha));
    config.activation.clamp = limit;
    config.activation.alpha = alpha;
    return Status::ok();
  }

  Status routing(MoeConfig& config) const {
    RoutingConfig& routing = config.routing;
    if (const Json* value = find(root_, {"scoring_func", "moe_router_activation_func"})) {
      if (*value != "softmax" && *value != "sigmoid") {
        return wrong("scoring_func", *value, "softmax or sigmoid", Code::kUnsupported);
      }
      routing.scoring = value->get<std::string>();
    } else if (is_one_of(kSoftmax, config.model_type)) {
      routing.scoring = "softmax";
    }
    routing.renormalize = !is_one_of(kNotRenormalised, config.model_type);
    if (const Json* value = find(root_, {"norm_topk_prob", "moe_renormalize"})) {
      if (!value->is_boolean()) return wrong("norm_topk_prob", *value, "true or false");
      routing.renormalize = value->get<bool>();
    }
    MEGAMOE_RETURN_IF_ERROR(number("routed_scaling_factor", routing.routed_scaling_factor));
    const Json* method = find(root_, {"topk_method"});
    const Json* with_bias = find(root_, {"use_routing_bias"});
    routing.corrected =
        (method != nullptr && *method == "noaux_tc") || (with_bias != nullptr && *with_bias == true);
    for (const auto& family : kCorrected) {
      if (config.model_type != family.model) continue;
      routing.corrected = true;
      routing.usual_correction = family.name;
    }
    if (method != nullptr) {
      const auto* row = std::find_if(std::begin(kChoices), std::end(kChoices),
                                     [&](const auto& choice) { return *method == choice.method; });
      if (row == std::end(kChoices)) {
        return wrong("topk_method", *method, "greedy, noaux_tc or group_limited_greedy", Code::kUnsupported);
      }
      if (row->group_score == nullptr) return Status::ok();
      routing.group_score = row->group_score;
    } else if (is_one_of(kGreedy, config.model_type)) {
      return Status::ok();
    }
    const Json* groups = find(root_, {"n_group", "num_expert_group"});
    if (groups == nullptr) return Status::ok();
    if (!base::to_size(*groups, routing.n_group) || routing.n_group < 1 ||
        config.num_experts % routing.n_group != 0) {
      return wrong("n_group", *groups, "a divisor of " + std::to_string(config.num_experts) + " experts");
    }
    const Json* kept = find(root_, {"topk_group"});
    if (kept != nullptr && (!base::to_size(*kept, routing.topk_group) || routing.topk_group < 1 ||
                            routing.topk_group > routing.n_group)) {
      return wrong("topk_group", *kept, "1 to " + std::to_string(routing.n_group));
    }
    const int64_t selectable = config.num_experts / routing.n_group * routing.topk_group;
    if (config.top_k > selectable) {
      return Status(Code::kDataLoss, path_ + ": num_experts_per_tok = " + std::to_string(config.top_k) +
                                         ": expected at most " + std::to_string(selectable) +
                                         ", the experts of topk_group of n_group groups");
    }
    return Status::ok();
  }

  Status quantisation(const Json& given, StoredQuantisation& out) const {
    if (!given.is_object()) return wrong("quantization_config", given, "an object");
    auto text = [&](const char* key) {
      const Json* value = find(given, {key});
      return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
    };
    out.method = text("quant_method");
    out.version = text("version");
    std::transform(out.version.begin(), out.version.end(), out.version.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    out.plus_one = out.method == "gptq" && text("checkpoint_format") != "gptq_v2";
    const Json ordered = given.value("desc_act", Json(false));
    if (!ordered.is_boolean()) return wrong("quantization_config.desc_act", ordered, "true or false");
    out.ordered = ordered.get<bool>();
    MEGAMOE_RETURN_IF_ERROR(whole_number(given, "quantization_config.", {"bits", "w_bit"}, out.bits));
    MEGAMOE_RETURN_IF_ERROR(
        whole_number(given, "quantization_config.", {"group_size", "q_group_size"}, out.group));
    const Json* groups = find(given, {"config_groups"});
    return groups == nullptr ? Status::ok() : config_groups(*groups, out);
  }

  Status whole_number(const Json& object, const std::string& where, std::initializer_list<const char*> keys,
                      int64_t& out) const {
    const Json* value = find(object, keys);
    if (value == nullptr) return Status::ok();
    if (*value == -1) {
      out = -1;
    } else if (!base::to_size(*value, out)) {
      return wrong(where + *keys.begin(), *value, "a whole number");
    }
    return Status::ok();
  }

  /// compressed-tensors: groups of layers, of which those with integer weights have to be alike.
  Status config_groups(const Json& groups, StoredQuantisation& out) const {
    const std::string where = "quantization_config.config_groups";
    if (!groups.is_object()) return wrong(where, groups, "an object");
    const Json* first = nullptr;
    for (const auto& [name, group] : groups.items()) {
      const Json* weights = group.is_object() ? find(group, {"weights"}) : nullptr;
      if (weights == nullptr || !weights->is_object() || weights->value("type", Json("int")) != "int")
        continue;
      const std::string at = where + "." + name + ".weights";
      StoredQuantisation one = out;
      MEGAMOE_RETURN_IF_ERROR(whole_number(*weights, at + ".", {"num_bits"}, one.bits));
      MEGAMOE_RETURN_IF_ERROR(whole_number(*weights, at + ".", {"group_size"}, one.group));
      const Json strategy = weights->value("strategy", Json());
      if (strategy == "channel") one.group = -1;
      const Json symmetric = weights->value("symmetric", Json(true)),
                 order = weights->value("actorder", Json());
      if (!symmetric.is_boolean()) return wrong(at + ".symmetric", symmetric, "true or false");
      one.symmetric = symmetric.get<bool>();
      one.ordered = order == "group" || order == true;
      if (first != nullptr && (one.bits != out.bits || one.group != out.group ||
                               one.symmetric != out.symmetric || one.ordered != out.ordered)) {
        return wrong(at, *weights, base::json_text(*first) + " as in the group before");
      }
      out = one;
      first = weights;
    }
    return Status::ok();
  }

 private:
  const std::string& path_;
  const Json& root_;
};

}  // namespace

Result<MoeConfig> read_moe_config(const std::string& path) {
  auto json = base::parse_json_file(path);
  if (!json) return json.status();
  if (!json->is_object()) return Status(Code::kDataLoss, path + ": expected an object");
  const Json* root = &*json;
  if (root->contains("text_config") && (*root)["text_config"].is_object()) root = &(*root)["text_config"];

  MoeConfig config;
  for (const Json* object : {static_cast<const Json*>(&*json), root}) {
    if (const Json* type = find(*object, {"model_type"}); type != nullptr && type->is_string()) {
      config.model_type = type->get<std::string>();
    }
  }
  const Reader reader(path, *root);
  MEGAMOE_RETURN_IF_ERROR(reader.sizes(config));
  MEGAMOE_RETURN_IF_ERROR(reader.activation(config));
  MEGAMOE_RETURN_IF_ERROR(reader.routing(config));
  for (const Json* object : {static_cast<const Json*>(&*json), root}) {
    if (const Json* given = find(*object, {"quantization_config"})) {
      MEGAMOE_RETURN_IF_ERROR(reader.quantisation(*given, config.quantisation));
      break;
    }
  }
  return config;
}

}  // namespace megamoe::checkpoint
