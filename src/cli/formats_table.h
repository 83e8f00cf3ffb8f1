// The tables of number formats and quantisation rules, as the tool prints them and docs/formats.md has them.
#pragma once

#include <string>
#include <vector>

namespace megamoe::cli {

struct TextTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

TextTable format_rows();
TextTable rule_rows();
/// A table as Markdown.
std::string markdown(const TextTable& table);

}  // namespace megamoe::cli
