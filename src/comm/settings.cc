// Compares what the ranks say of themselves.
#include "comm/settings.h"

#include <algorithm>
#include <string_view>

#include "megamoe/version.h"

namespace megamoe::comm {
namespace {

/// "a on ranks 0, 1; b on rank 2" when the values differ, else empty.
std::string difference(std::span<const Hello* const> hellos, std::span<const std::string> values) {
  std::vector<std::string_view> seen;
  for (const std::string& value : values) {
    if (std::find(seen.begin(), seen.end(), value) == seen.end()) seen.push_back(value);
  }
  if (seen.size() < 2) return {};
  std::string text;
  for (std::string_view value : seen) {
    std::vector<int> ranks;
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == value) ranks.push_back(hellos[i]->rank);
    }
    text += (text.empty() ? "" : "; ") + std::string(value) + " on " + rank_list(ranks);
  }
  return text;
}

Status differs(const std::string& field, const std::string& text) {
  return Status(Code::kSettingsDiffer, field + " = " + text + ": expected the same value on every rank");
}

std::string value_of(const Settings& settings, const std::string& field) {
  for (const auto& [name, value] : settings) {
    if (name == field) return value;
  }
  return "(absent)";
}

}  // namespace

Settings full_settings(const Settings& settings, size_t segment_bytes) {
  Settings full = {{"library version", version()}};
  full.insert(full.end(), settings.begin(), settings.end());
  full.emplace_back("segment bytes", std::to_string(segment_bytes));
  return full;
}

std::string rank_list(std::span<const int> ranks) {
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  std::string text = sorted.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < sorted.size(); ++i) text += (i ? ", " : "") + std::to_string(sorted[i]);
  return text;
}

Status agree(std::span<const Hello* const> unsorted) {
  std::vector<const Hello*> hellos(unsorted.begin(), unsorted.end());
  std::stable_sort(hellos.begin(), hellos.end(),
                   [](const Hello* a, const Hello* b) { return a->rank < b->rank; });

  std::vector<std::string> values(hellos.size());
  const auto compare = [&](const std::string& field, const auto& get) {
    for (size_t i = 0; i < hellos.size(); ++i) values[i] = get(*hellos[i]);
    const std::string text = difference(hellos, values);
    return text.empty() ? Status() : differs(field, text);
  };
  MEGAMOE_RETURN_IF_ERROR(compare("group size", [](const Hello& h) { return std::to_string(h.size); }));
  for (size_t i = 0; i < hellos.size(); ++i) {
    const int rank = hellos[i]->rank;
    if (rank < 0 || rank >= hellos[i]->size) {
      return Status(Code::kInvalidArgument, "rank = " + std::to_string(rank) + ": expected a value in [0, " +
                                                std::to_string(hellos[i]->size) + ")");
    }
    if (i > 0 && hellos[i - 1]->rank == rank) {
      return Status(Code::kInvalidArgument,
                    "rank = " + std::to_string(rank) + " given by two members: expected each rank once");
    }
  }
  for (const Hello* hello : hellos) {
    if (hello->refusal.is_ok()) continue;
    if (hello->size == 1) return hello->refusal;
    return Status(hello->refusal.code(),
                  "rank " + std::to_string(hello->rank) + ": " + hello->refusal.message());
  }
  std::vector<std::string> fields;
  for (const Hello* hello : hellos) {
    for (const auto& [field, value] : hello->settings) {
      if (std::find(fields.begin(), fields.end(), field) == fields.end()) fields.push_back(field);
    }
  }
  for (const std::string& field : fields) {
    MEGAMOE_RETURN_IF_ERROR(compare(field, [&](const Hello& h) { return value_of(h.settings, field); }));
  }
  return Status::ok();
}

}  // namespace megamoe::comm
