// Texts of the caller in messages: cut between characters, and JSON that is read strictly.
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "base/quoted.h"

namespace megamoe::base {
namespace {

std::string times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(Text, FitsWholeCharacters) {
  const std::string euro = "\xe2\x82\xac";
  EXPECT_EQ(fitting_bytes("abc", 3), 3u);
  EXPECT_EQ(fitting_bytes("abc", 2), 2u);
  EXPECT_EQ(fitting_bytes(std::string("a") + euro, 4), 4u);
  EXPECT_EQ(fitting_bytes(std::string("a") + euro, 3), 1u);
  EXPECT_EQ(fitting_bytes(euro, 2), 0u);
}

TEST(Text, LongOnesAreCut) {
  EXPECT_EQ(shortened(times(80, "x")), times(80, "x"));
  EXPECT_EQ(shortened(times(81, "x")), times(77, "x") + "...");
  EXPECT_EQ(quoted("a\"b"), "\"a\"b\"");
}

TEST(Text, JsonIsCutBetweenCharacters) {
  const std::string umlaut = "\xc3\xa4";
  EXPECT_EQ(json_text(nlohmann::json::array({1, 2})), "[1,2]");
  // A quotation mark and 38 characters of two bytes are 77 bytes; with one letter before them the last one
  // goes.
  EXPECT_EQ(json_text(times(60, umlaut)), std::string("\"") + times(38, umlaut) + "...");
  EXPECT_EQ(json_text(std::string("x") + times(60, umlaut)), std::string("\"x") + times(37, umlaut) + "...");
}

TEST(Json, NamesStandOnceInAnObject) {
  EXPECT_TRUE(parse_json(R"({"a": {"b": 1}, "c": {"b": 2}})", "file"));
  const auto twice = parse_json(R"({"a": {"b": 1, "b": 2}})", "file");
  EXPECT_EQ(twice.status().code(), Code::kDataLoss);
  EXPECT_EQ(twice.status().message(), "file: the name 'b' stands twice in one object: expected once");
  EXPECT_EQ(parse_json("{", "file").status().code(), Code::kDataLoss);
}

TEST(Json, SizesAreWholeAndNotNegative) {
  int64_t size = 0;
  EXPECT_TRUE(to_size(nlohmann::json::parse("9223372036854775807"), size));
  EXPECT_EQ(size, INT64_MAX);
  for (const char* text : {"9223372036854775808", "-1", "1.0", "\"1\"", "true", "null"}) {
    EXPECT_FALSE(to_size(nlohmann::json::parse(text), size)) << text;
  }
}

}  // namespace
}  // namespace megamoe::base
