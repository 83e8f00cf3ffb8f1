// The table of cases is complete: every parameter of the operator's documents x kind x profile has a case, or
// a stated reason why there is none; and every row of the limits is broken by a case.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "limit_cases.h"
#include "moe/limit_rows.h"

namespace megamoe {
namespace {

using test::LimitCase;
using Words = std::vector<std::string>;

const Words kKinds = {"smallest",    "largest", "outside",    "wrong type",
                      "wrong shape", "missing", "superfluous"};

/// Lines of a file beside this test, without comments.
Words lines_of(const std::string& name) {
  Words lines;
  std::ifstream file(std::string(MEGAMOE_TEST_DATA) + "/limits/" + name);
  EXPECT_TRUE(file) << name;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

/// Parts of a text between separators, without the spaces around them.
Words split(const std::string& text, char separator) {
  Words parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    const size_t begin = part.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    parts.push_back(part.substr(begin, part.find_last_not_of(' ') + 1 - begin));
  }
  return parts;
}

bool contains(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// The kind of the walk that a case belongs to: the one its own kind begins with. Empty for a case beside the
/// walk.
std::string kind_of(const LimitCase& one) {
  const std::string kind = std::string(one.kind) + " ";
  for (const std::string& known : kKinds) {
    if (kind.rfind(known + " ", 0) == 0) return known;
  }
  for (const char* place : {"below ", "above ", "between "}) {
    if (kind.rfind(place, 0) == 0) return "outside";
  }
  return "";
}

struct Parameter {
  std::string name, kind;
};
std::vector<Parameter> parameters() {
  std::vector<Parameter> all;
  for (const std::string& line : lines_of("parameters.txt")) {
    const Words words = split(line, ' ');
    EXPECT_EQ(words.size(), 4u) << line;
    all.push_back({words[0], words[1]});
  }
  return all;
}

/// A row of absent.txt.
struct Reason {
  std::string line;
  Words profiles, parameters, kinds;

  explicit Reason(const std::string& text) : line(text) {
    const Words columns = split(text, '|');
    EXPECT_EQ(columns.size(), 4u) << line;
    profiles = split(columns[0], ' '), parameters = split(columns[1], ' '), kinds = split(columns[2], ',');
  }
  bool covers(const std::string& profile, const Parameter& parameter, const std::string& kind) const {
    const auto listed = [](const Words& list, const std::string& word) {
      return contains(list, "*") || contains(list, word);
    };
    return listed(profiles, profile) && listed(kinds, kind) &&
           (listed(parameters, parameter.name) || contains(parameters, ":" + parameter.kind));
  }
};

TEST(LimitCells, EachHasACaseOrAReason) {
  std::set<std::string> held;
  for (const LimitCase& one : test::limit_cases())
    held.insert(std::string(one.profile) + "/" + one.parameter + "/" + kind_of(one));
  std::vector<Reason> reasons;
  for (const std::string& line : lines_of("absent.txt")) reasons.emplace_back(line);
  std::set<std::string> used;
  int cells = 0;
  for (const moe::ProfileInfo& profile : moe::profiles()) {
    for (const Parameter& parameter : parameters()) {
      for (const std::string& kind : kKinds) {
        ++cells;
        if (held.contains(std::string(profile.name) + "/" + parameter.name + "/" + kind)) continue;
        bool explained = false;
        for (const Reason& reason : reasons) {
          if (!reason.covers(profile.name, parameter, kind)) continue;
          explained = true;
          used.insert(reason.line);
        }
        EXPECT_TRUE(explained) << parameter.name << ", " << kind << ", profile " << profile.name;
      }
    }
  }
  EXPECT_GT(cells, 1300);
  for (const Reason& reason : reasons) {
    EXPECT_TRUE(used.contains(reason.line)) << "explains no cell without a case: " << reason.line;
  }
}

TEST(LimitCells, CasesAreOfKnownParametersAndDoWhatTheirKindSays) {
  std::set<std::string> names;
  for (const Parameter& parameter : parameters()) names.insert(parameter.name);
  for (const LimitCase& one : test::limit_cases()) {
    EXPECT_TRUE(names.contains(one.parameter)) << one.title();
    const std::string kind = kind_of(one);
    if (kind == "smallest" || kind == "largest") {
      EXPECT_TRUE(one.accepted()) << one.title() << ": " << one.error;
    }
    if (kind == "outside" || kind == "superfluous" || kind.rfind("wrong", 0) == 0) {
      EXPECT_FALSE(one.accepted()) << one.title();
    }
  }
}

TEST(LimitCells, ReasonsNameWhatThereIs) {
  Words names = {"*"}, profiles = {"*"}, kinds = kKinds;
  kinds.emplace_back("*");
  for (const Parameter& parameter : parameters()) {
    names.push_back(parameter.name), names.push_back(":" + parameter.kind);
  }
  for (const moe::ProfileInfo& profile : moe::profiles()) profiles.emplace_back(profile.name);
  for (const std::string& line : lines_of("absent.txt")) {
    const Reason reason(line);
    for (const auto& [given, known] :
         {std::pair(&reason.profiles, &profiles), std::pair(&reason.parameters, &names),
          std::pair(&reason.kinds, &kinds)}) {
      for (const std::string& word : *given) EXPECT_TRUE(contains(*known, word)) << word << " in: " << line;
    }
  }
}
// Each limit of a device is broken by some case, so that no row is without a test.
TEST(LimitCells, EveryLimitHasACaseThatBreaksIt) {
  std::set<std::string> texts;
  for (const LimitCase& one : test::limit_cases()) texts.insert(one.error);
  for (const moe::ProfileInfo& info : moe::profiles()) {
    for (const moe::Limit& limit : moe::limit_rows()) {
      const bool behaviour = limit.parameter == moe::Parameter::kRepeatedExperts ||
                             limit.parameter == moe::Parameter::kUnequalTokens;
      if (behaviour || !moe::holds_for(limit, info.profile)) continue;
      // Follows from the limits on ep_world_size and num_experts: 2048 experts on 2 ranks or more.
      if (limit.parameter == moe::Parameter::kExpertsPerRank && info.profile == moe::Profile::kAscend950)
        continue;
      const std::string name = std::string(moe::parameter_info(limit.parameter).name) + " ";
      const bool fixed =
          !limit.allowed.low.refers && !limit.allowed.high.refers && !limit.allowed.multiple.refers;
      const std::string when = moe::when_text(limit);
      const std::string end =
          (fixed ? ": expected " + moe::allowed_text(limit, nullptr) : "") +
          (when.empty() ? "" : " with " + when) +
          (moe::holds_everywhere(limit) ? "" : std::string(" (profile ") + info.name + ")");
      const bool broken = std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
        return text.rfind(name, 0) == 0 && text.size() >= end.size() &&
               text.compare(text.size() - end.size(), end.size(), end) == 0;
      });
      EXPECT_TRUE(broken) << name << end;
    }
  }
}

}  // namespace
}  // namespace megamoe
