// Tuning files: JSON in, entries out, every field checked.
#include "moe/tuning.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/cpu.h"
#include "base/json.h"
#include "base/quoted.h"
#include "moe/scenarios.h"

namespace megamoe {
namespace moe {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 1;
constexpr const char* kFormatField = "megamoe_tuning";
constexpr struct {
  const char* name;
  int64_t TuningKey::*value;
} kSizes[] = {{"hidden", &TuningKey::hidden},   {"intermediate", &TuningKey::intermediate},
              {"experts", &TuningKey::experts}, {"topk", &TuningKey::topk},
              {"ranks", &TuningKey::ranks},     {"threads", &TuningKey::threads}};

Status wrong(const std::string& where, const std::string& got, const std::string& expected) {
  return Status(Code::kInvalidArgument,
                where + (got.empty() ? " is missing" : " = " + got) + ": expected " + expected);
}

std::string text_of(const json& object, const char* field) {
  return object.contains(field) ? base::json_text(object[field]) : "";
}

Status expect_object(const json& value, const std::string& where, std::initializer_list<const char*> fields) {
  if (!value.is_object()) return wrong(where, base::json_text(value), "an object");
  for (const auto& [name, unused] : value.items()) {
    bool known = false;
    std::string names;
    for (const char* field : fields) {
      known = known || name == field;
      names += (names.empty() ? "" : ", ") + std::string(field);
    }
    if (!known) return Status(Code::kInvalidArgument, where + "." + name + ": expected one of " + names);
  }
  return Status::ok();
}

Status read_text(const json& object, const char* field, const std::string& where, std::string& out) {
  if (!object.contains(field) || !object[field].is_string()) {
    return wrong(where + "." + field, text_of(object, field), "a text");
  }
  out = object[field].get<std::string>();
  return Status::ok();
}

Status read_blocks(const json& blocks, const std::string& where, TuningEntry& entry) {
  if (!blocks.is_object()) return wrong(where, base::json_text(blocks), "an object");
  for (const auto& [name, value] : blocks.items()) {
    const BlockSize* size = find_block_size(name);
    if (size == nullptr) {
      std::string names;
      for (const BlockSize& known : block_sizes()) {
        names += (names.empty() ? "" : ", ") + std::string(known.name);
      }
      return Status(Code::kInvalidArgument, where + "." + name + ": expected one of " + names);
    }
    int64_t number = 0;
    if (!base::to_size(value, number) || !size->allows(number)) {
      return wrong(where + "." + name, base::json_text(value), size->allowed());
    }
    entry.sizes.emplace_back(size, number);
  }
  return Status::ok();
}

Status read_entry(const json& layer, const std::string& where, TuningEntry& entry) {
  MEGAMOE_RETURN_IF_ERROR(expect_object(
      layer, where,
      {"isa", "scenario", "hidden", "intermediate", "experts", "topk", "ranks", "threads", "blocks"}));
  std::string isa;
  MEGAMOE_RETURN_IF_ERROR(read_text(layer, "isa", where, isa));
  const auto level = isa_from_name(isa);
  if (!level) return Status(level.status().code(), where + "." + level.status().message());
  entry.key.isa = *level;
  MEGAMOE_RETURN_IF_ERROR(read_text(layer, "scenario", where, entry.key.scenario));
  const auto scenario = scenario_from_name(entry.key.scenario);
  if (!scenario) return Status(scenario.status().code(), where + "." + scenario.status().message());
  for (const auto& [name, value] : kSizes) {
    if (!layer.contains(name) || !base::to_size(layer[name], entry.key.*value) || entry.key.*value < 1) {
      return wrong(where + "." + name, text_of(layer, name), "a number from 1");
    }
  }
  if (!layer.contains("blocks")) return wrong(where + ".blocks", "", "an object");
  return read_blocks(layer["blocks"], where + ".blocks", entry);
}

Status read_file(const json& file, Tuning::Impl& tuning) {
  if (!file.is_object() || !file.contains(kFormatField)) {
    return Status(Code::kInvalidArgument,
                  tuning.name + ": " + kFormatField + " is missing: expected a file of megamoe tune");
  }
  if (file[kFormatField] != kFormat) {
    return wrong(tuning.name + ": " + kFormatField, text_of(file, kFormatField),
                 std::to_string(kFormat) + ", the format of this version: run megamoe tune again");
  }
  MEGAMOE_RETURN_IF_ERROR(expect_object(file, tuning.name + ": file", {kFormatField, "cpu", "layers"}));
  std::string cpu;
  MEGAMOE_RETURN_IF_ERROR(read_text(file, "cpu", tuning.name + ": file", cpu));
  if (cpu != base::cpu_model()) {
    return wrong(tuning.name + ": cpu", cpu, base::cpu_model() + ", the CPU of this machine");
  }
  if (!file.contains("layers") || !file["layers"].is_array()) {
    return wrong(tuning.name + ": layers", text_of(file, "layers"), "an array");
  }
  for (size_t i = 0; i < file["layers"].size(); ++i) {
    const std::string where = tuning.name + ": layers[" + std::to_string(i) + "]";
    TuningEntry entry;
    MEGAMOE_RETURN_IF_ERROR(read_entry(file["layers"][i], where, entry));
    if (tuning.find(entry.key) != nullptr) {
      return Status(Code::kInvalidArgument, where + " is of the same layer as one before: expected it once");
    }
    tuning.entries.push_back(std::move(entry));
  }
  return Status::ok();
}

}  // namespace

std::string tuning_text(const std::vector<TuningEntry>& entries) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const TuningEntry& entry : entries) {
    nlohmann::ordered_json layer = {{"isa", isa_name(entry.key.isa)}, {"scenario", entry.key.scenario}};
    for (const auto& [name, value] : kSizes) layer[name] = entry.key.*value;
    layer["blocks"] = nlohmann::ordered_json::object();
    for (const auto& [size, value] : entry.sizes) layer["blocks"][size->name] = value;
    layers.push_back(std::move(layer));
  }
  const nlohmann::ordered_json file = {
      {kFormatField, kFormat}, {"cpu", base::cpu_model()}, {"layers", std::move(layers)}};
  return file.dump(2) + "\n";
}

ChosenBlocking choose_blocking(const Tuning* tuning, const TuningKey& key) {
  ChosenBlocking chosen{default_blocking(base::topology()), "defaults"};
  if (tuning == nullptr) return chosen;
  const TuningEntry* entry = tuning->impl().find(key);
  if (entry == nullptr) {
    chosen.source = "defaults: " + tuning->name() + " has no such layer";
    return chosen;
  }
  for (const auto& [size, value] : entry->sizes) chosen.sizes.*size->value = value;
  chosen.source = "tuning " + tuning->name();
  return chosen;
}

}  // namespace moe

const moe::TuningEntry* Tuning::Impl::find(const moe::TuningKey& key) const {
  for (const moe::TuningEntry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

Tuning::Tuning(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tuning::~Tuning() = default;

const std::string& Tuning::name() const {
  return impl_->name;
}

Result<std::shared_ptr<const Tuning>> Tuning::parse(std::string_view text, const std::string& name) {
  const auto file = base::parse_json(text, name);
  if (!file) return file.status();
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  MEGAMOE_RETURN_IF_ERROR(moe::read_file(*file, *impl));
  return std::shared_ptr<const Tuning>(std::make_shared<Tuning>(std::move(impl)));
}

Result<std::shared_ptr<const Tuning>> Tuning::read(const std::string& path) {
  if (!std::ifstream(path)) {
    return Status(Code::kInvalidArgument, "tuning file " + base::quoted(path) + " cannot be opened, " +
                                              std::strerror(errno) + ": expected a file of `megamoe tune`");
  }
  const auto file = base::parse_json_file(path, size_t{1} << 20);
  if (!file) return file.status();
  auto impl = std::make_unique<Impl>();
  impl->name = path;
  MEGAMOE_RETURN_IF_ERROR(moe::read_file(*file, *impl));
  return std::shared_ptr<const Tuning>(std::make_shared<Tuning>(std::move(impl)));
}

}  // namespace megamoe
