// megamoe tune and --tuning, as their users run them.
#include <gtest/gtest.h>

#include <fstream>

#include "base/cpu.h"
#include "cli/tool.h"

namespace megamoe {
namespace {

using nlohmann::json;
using test::contains;
using test::run;
using test::run_json;

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file, nullptr, false);
}

json file_of(const json& blocks) {
  const json layer = {{"isa", "generic"},   {"scenario", "A8W4-INT"}, {"hidden", 64},
                      {"intermediate", 32}, {"experts", 8},           {"topk", 2},
                      {"ranks", 1},         {"threads", 2},           {"blocks", blocks}};
  return {{"megamoe_tuning", 1}, {"cpu", base::cpu_model()}, {"layers", {layer}}};
}

TEST(Tune, MeasuresCandidatesAndKeepsOtherLayers) {
  test::Scratch scratch;
  const std::string path = scratch.file("tuning.json");
  std::ofstream(path) << file_of({{"piece_ns", 5000}});
  const json lines = run_json(
      "tune --shape 64x32x4x2 --tokens 1,8 --routing zipf,one --repeat 3 --threads 1 --output " + path);
  bool control = false, strip = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    const json& line = lines[i];
    EXPECT_EQ(line["routing"], i % 4 < 2 ? "zipf" : "one");
    EXPECT_EQ(line["tokens"], i % 2 == 0 ? 1 : 8);
    EXPECT_GT(line["ms"].get<double>(), 0);
    EXPECT_GT(line["defaults_ms"].get<double>(), 0);
    control = control || line["candidate"] == "defaults again";
    strip = strip || contains(line["candidate"], "piece_ns 40000");
  }
  EXPECT_TRUE(control && strip) << lines.dump(1);
  const json file = read_json(path);
  ASSERT_GE(file["layers"].size(), 1u);
  EXPECT_EQ(file["layers"][0], file_of({{"piece_ns", 5000}})["layers"][0]);
}

TEST(Tune, TakesFewerPairsWhenTheTimeIsOver) {
  test::Scratch scratch;
  const std::string command = "tune --shape 64x32x4x2 --tokens 1,3 --threads 1 --output ";
  for (const char* ranks : {"", " --ranks 2", " --ranks 2 --transport shm"}) {
    const json lines = run_json(command + scratch.file("tuning.json") + " --repeat 100 --seconds 0" + ranks);
    for (const json& line : lines) EXPECT_EQ(line["pairs"], 5) << line << ranks;
  }
  for (const json& line : run_json(command + scratch.file("tuning.json") + " --repeat 7")) {
    EXPECT_EQ(line["pairs"], 7) << line;
  }
}

TEST(Tune, NothingIsBetterInOnePair) {
  test::Scratch scratch;
  const std::string path = scratch.file("tuning.json");
  const std::string command = "tune --shape 64x32x4x2 --tokens 1,3 --repeat 1 --threads 1 --output " + path;
  for (const json& line : run_json(command)) {
    EXPECT_EQ(line["better"], false) << line;
    EXPECT_TRUE(line["noise"].is_null()) << line;
  }
  EXPECT_TRUE(read_json(path)["layers"].empty());
  EXPECT_TRUE(contains(run(command).out, "A16W16: too few pairs to call anything better than the defaults"));
}

TEST(Tune, PlansAndRunsReadTheFile) {
  test::Scratch scratch;
  const std::string path = scratch.file("tuning.json");
  std::ofstream(path) << file_of({{"piece_ns", 5000}, {"combine_tokens", 1}});
  const std::string shape =
      " --shape 64x32x8x2 --scenario A8W4-INT --isa generic --threads 2 --tuning " + path;
  const json plan = run_json("plan" + shape)[0];
  EXPECT_EQ(plan["block sizes from"], "tuning " + path);
  EXPECT_TRUE(contains(plan["block sizes"], "piece_ns 5000")) << plan["block sizes"];
  EXPECT_TRUE(contains(plan["block sizes"], "combine_tokens 1")) << plan["block sizes"];
  EXPECT_EQ(run_json("bench --tokens 3 --repeat 1" + shape)["rows"].size(), 1u);
  EXPECT_EQ(run_json("info --tuning " + path)["block_sizes"]["tuned_layers"], 1);
  EXPECT_TRUE(run_json("info")["block_sizes"]["defaults"].contains("strip_bytes"));
}

TEST(Tune, RefusesFilesItCannotRead) {
  test::Scratch scratch;
  const std::string path = scratch.file("tuning.json");
  std::ofstream(path) << file_of({{"strip_bytes", 5}});
  const std::string error =
      "megamoe: " + path + ": layers[0].blocks.strip_bytes = 5: expected a multiple of 4096";
  for (const char* command : {"info --tuning ", "tune --shape 64x32x4x2 --output "}) {
    const test::Outcome outcome = run(command + path);
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_TRUE(contains(outcome.error, error)) << command << outcome.error;
  }
  EXPECT_EQ(read_json(path), file_of({{"strip_bytes", 5}}));  // untouched
  EXPECT_TRUE(contains(run("tune --shape 64x32x4x2").error, "--output"));
}

}  // namespace
}  // namespace megamoe
