// The tables of number formats and quantisation rules, as the tool prints them and docs/formats.md has them.
#include "cli/formats_table.h"

#include <cstdio>

#include "format/check.h"
#include "format/fractal.h"
#include "format/table.h"
#include "megamoe/quantise.h"
#include "quant/rules.h"

namespace megamoe::cli {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string extent(int64_t value) {
  return value > 0 ? std::to_string(value) : "-";
}

/// Columns of the scales of a row of H columns.
std::string scale_columns(const quant::RuleInfo& rule) {
  if (!rule.has_scales()) return "-";
  if (rule.group == 0) return "1";
  const std::string groups = "ceil(H / " + std::to_string(rule.group) + ")";
  return rule.scale_multiple == 1 ? groups : groups + ", even";
}

std::string arguments(const QuantRuleInfo& rule) {
  std::string text;
  for (const auto& [takes, name] : {std::pair{rule.takes_smooth, "smooth (optional)"},
                                    {rule.takes_scale, "scale"},
                                    {rule.takes_offset, "offset"}}) {
    if (takes) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return or_dash(text);
}

}  // namespace

TextTable format_rows() {
  TextTable table{
      {"format", "bits", "from the top bit", "casts round to", "largest", "emax", "smallest above 0",
       "infinity", "NaN", "zero", "operator code", "C0 of FRACTAL_NZ", "C0 of FRACTAL_NZ_C0_32"},
      {}};
  for (const format::FormatInfo& info : format::formats()) {
    const format::FormatFigures figures = format::figures(info);
    table.rows.push_back({dtype_name(info.dtype), std::to_string(dtype_bits(info.dtype)), info.layout,
                          info.rounding, number(figures.largest), std::to_string(figures.emax),
                          number(figures.smallest), or_dash(figures.infinities), or_dash(figures.nans),
                          or_dash(figures.zeros), extent(dtype_op_code(info.dtype)),
                          extent(format::fractal_c0(info.dtype, Layout::kFractalNz)),
                          extent(format::fractal_c0(info.dtype, Layout::kFractalNzC0_32))});
  }
  return table;
}

TextTable rule_rows() {
  TextTable table{
      {"rule", "codes", "scales", "columns of a group", "scales of a row of H columns", "x", "arguments"},
      {}};
  const std::vector<QuantRuleInfo> rules = quant_rules();
  for (size_t i = 0; i < rules.size(); ++i) {
    const QuantRuleInfo& rule = rules[i];
    table.rows.push_back({rule.name, dtype_name(rule.codes),
                          rule.scales == DType::kUndefined ? "-" : dtype_name(rule.scales),
                          rule.group == 0 ? "all" : std::to_string(rule.group),
                          scale_columns(quant::rules()[i]), format::type_list(rule.inputs), arguments(rule)});
  }
  return table;
}

std::string markdown(const TextTable& table) {
  auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + cell + " |";
    return text + "\n";
  };
  std::string text = line(table.columns) + line(std::vector<std::string>(table.columns.size(), "---"));
  for (const auto& row : table.rows) text += line(row);
  return text;
}

}  // namespace megamoe::cli
