// Text tables for people, and numbers as text.
#include "cli/table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace megamoe::cli {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

bool numeric(const std::string& cell) {
  return cell.empty() || cell == "-" || cell.find_first_not_of("0123456789.eE+-% ") == std::string::npos;
}

}  // namespace

void Table::print() const {
  std::vector<size_t> width(columns_.size());
  std::vector<bool> right(columns_.size(), true);
  for (size_t c = 0; c < columns_.size(); ++c) {
    width[c] = columns_[c].size();
    for (const auto& row : rows_) {
      width[c] = std::max(width[c], row[c].size());
      right[c] = right[c] && numeric(row[c]);
    }
  }
  auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(width[c] - cells[c].size(), ' ');
      text += (c == 0 ? "" : "  ") + (right[c] ? padding + cells[c] : cells[c] + padding);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    std::printf("%s\n", text.c_str());
  };
  line(columns_);
  for (const auto& row : rows_) line(row);
}

std::string fixed(double value, int decimals) {
  return format("%.*f", decimals, value);
}
std::string scientific(double value) {
  return format("%.2e", value);
}
std::string percent(double share) {
  return format("%.0f %%", share * 100);
}
std::string or_dash(double value, std::string (*text)(double)) {
  return std::isfinite(value) ? text(value) : "-";
}

std::string byte_text(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) bytes /= 1024, ++unit;
  return format(unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
}

}  // namespace megamoe::cli
