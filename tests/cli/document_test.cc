// What the documents say of the tool is what the tool says itself.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "cli/tool.h"

namespace megamoe {
namespace {

using nlohmann::json;
using test::contains;
using test::Outcome;
using test::run;
using test::run_json;

std::string read(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(std::string(MEGAMOE_SOURCE_DIR) + "/" + name).rdbuf();
  return text.str();
}

/// First words of the lines of a help text that match a pattern.
std::set<std::string> matches(const std::string& text, const char* pattern) {
  std::set<std::string> found;
  std::istringstream lines(text);
  const std::regex expression(pattern);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, match, expression)) found.insert(match[1]);
  }
  return found;
}

TEST(Document, HasEveryCommandAndOption) {
  const std::string document = read("docs/cli.md");
  const size_t first_section = document.find("\n## ");
  const std::string common = document.substr(0, first_section);
  const std::string help = run("--help").out;
  const auto has_options = [](const std::string& part, const std::string& text, const std::string& command) {
    for (const std::string& option : matches(text, "^  (--[a-z-]+)")) {
      if (option == "--version") continue;
      EXPECT_TRUE(std::regex_search(part, std::regex(option + "[^a-z-]")))
          << "docs/cli.md lacks " << option << " of megamoe " << command;
    }
  };
  has_options(common, help, "");
  const std::set<std::string> commands = matches(help.substr(help.find("Subcommands:")), "^  ([a-z]+) ");
  EXPECT_EQ(commands.size(), 11u);
  for (const std::string& command : commands) {
    const size_t begin = document.find("\n## " + command + "\n");
    ASSERT_NE(begin, std::string::npos) << "docs/cli.md lacks a section " << command;
    const std::string section = document.substr(begin, document.find("\n## ", begin + 1) - begin);
    const Outcome own = run(command + " --help");
    EXPECT_EQ(own.code, 0);
    EXPECT_TRUE(contains(own.out, "Options of every command, such as --ranks and --json: megamoe --help"));
    has_options(common + section, own.out, command);
  }
}

TEST(Document, HasTheTablesOfLimits) {
  const std::string document = read("docs/limits.md");
  for (const char* profile : {"cpu", "ascend_a2_a3", "ascend_950", "mega_moe_v1"}) {
    const std::string name = profile;
    const Outcome table = run("limits " + name);
    EXPECT_EQ(table.code, 0);
    EXPECT_TRUE(contains(document, "## " + name + "\n\n" + table.out))
        << "docs/limits.md lacks this table of " << name << ":\n"
        << table.out;
    const json limits = run_json("limits " + name);
    EXPECT_EQ(limits["profile"], name);
    EXPECT_EQ(limits["limits"].size(),
              static_cast<size_t>(std::count(table.out.begin(), table.out.end(), '\n')) - 2);
  }
  EXPECT_EQ(run("limits tpu").error,
            "megamoe: profile = \"tpu\": expected one of cpu, ascend_a2_a3, ascend_950, mega_moe_v1\n");
}

TEST(Document, HasTheTablesOfFormats) {
  const std::string document = read("docs/formats.md");
  const std::string tables = run("info --formats").out;
  const size_t end_of_first = tables.find("\n\n");
  ASSERT_NE(end_of_first, std::string::npos);
  for (const std::string& table : {tables.substr(0, end_of_first + 1), tables.substr(end_of_first + 2)}) {
    EXPECT_TRUE(contains(document, table)) << "docs/formats.md lacks this table:\n" << table;
  }
  const json rows = run_json("info --formats");
  EXPECT_EQ(rows["formats"].size(), 10u);
  EXPECT_EQ(rows["rules"].size(), 21u);
}

}  // namespace
}  // namespace megamoe
