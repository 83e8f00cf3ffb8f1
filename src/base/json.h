// JSON of files nobody vouches for: parsing without exceptions, duplicate names refused, numbers checked.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "megamoe/status.h"

namespace megamoe::base {

/// Parses `text`; errors start with `who`.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& who);
/// Parses a whole file of at most `max_bytes`.
Result<nlohmann::json> parse_json_file(const std::string& path, size_t max_bytes = size_t{64} << 20);
/// True, with the value, for an integer in [0, 2^63).
bool to_size(const nlohmann::json& value, int64_t& out);
/// Short text of a value for messages.
std::string json_text(const nlohmann::json& value);

}  // namespace megamoe::base
