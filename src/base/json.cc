// JSON of files nobody vouches for: parsing without exceptions, duplicate names refused, numbers checked.
#include "base/json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <vector>

#include "base/quoted.h"

namespace megamoe::base {

Result<nlohmann::json> parse_json(std::string_view text, const std::string& who) {
  using nlohmann::json;
  std::vector<std::set<std::string>> names;
  std::string duplicate;
  auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second &&
        duplicate.empty()) {
      duplicate = value.get<std::string>();
    }
    return true;
  };
  try {
    json value = json::parse(text.begin(), text.end(), watch);
    if (!duplicate.empty()) {
      return Status(Code::kDataLoss,
                    who + ": the name '" + duplicate + "' stands twice in one object: expected once");
    }
    return value;
  } catch (const json::exception& error) {
    return Status(Code::kDataLoss, who + ": not valid JSON: " + error.what());
  }
}

Result<nlohmann::json> parse_json_file(const std::string& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Status(Code::kInvalidArgument, path + " cannot be opened: " + std::strerror(errno));
  }
  std::string text;
  std::vector<char> buffer(1 << 16);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0) {
    text.append(buffer.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > max_bytes) {
      return Status(Code::kDataLoss,
                    path + " is longer than " + std::to_string(max_bytes) + " bytes: expected JSON");
    }
  }
  if (file.bad()) return Status(Code::kSystem, path + " cannot be read: " + std::strerror(errno));
  return parse_json(text, path);
}

bool to_size(const nlohmann::json& value, int64_t& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    out = static_cast<int64_t>(number);
    return true;
  }
  out = value.get<int64_t>();
  return out >= 0;
}

std::string json_text(const nlohmann::json& value) {
  return shortened(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace megamoe::base
