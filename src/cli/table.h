// Text tables for people, and numbers as text.
#pragma once

#include <string>
#include <vector>

namespace megamoe::cli {

/// Rows of cells, printed with aligned columns: text to the left, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const;

 private:
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string fixed(double value, int decimals);
std::string scientific(double value);
std::string percent(double share);
/// What a function above writes, "-" for what is not finite.
std::string or_dash(double value, std::string (*text)(double));
/// "1.50 GiB"
std::string byte_text(double bytes);

}  // namespace megamoe::cli
