// The built tool, run as its users run it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "checkpoint/scratch.h"
#include "cli/tool.h"
#include "megamoe/isa.h"

namespace megamoe {
namespace {

using nlohmann::json;
using test::contains;
using test::kScenarios;
using test::Outcome;
using test::run;
using test::run_json;

TEST(Tool, Info) {
  const json info = run_json("info");
  EXPECT_EQ(info["isa"]["levels"].size(), static_cast<size_t>(kIsaCount));
  EXPECT_GE(info["topology"]["cores"].get<int>(), 1);
  EXPECT_GE(info["threads_per_rank"].get<int>(), 1);
  EXPECT_EQ(run_json("info --isa generic")["isa"]["chosen"], "generic");
  EXPECT_EQ(run_json("--isa generic info --threads 3")["threads_per_rank"], 3);
  const Outcome text = run("info");
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, "In use: "));
}

TEST(Tool, WrongArguments) {
  const std::pair<const char*, const char*> cases[] = {
      {"info --isa turbo", "megamoe: isa = turbo: expected one of generic"},
      {"", "megamoe: a command is missing: expected one of info, limits, plan,"},
      {"fly", "megamoe: command = fly: expected one of info, limits, plan,"},
      {"--json fly --shape 1", "megamoe: command = fly: expected one of info"},
      {"info extra", "extra"},
      {"info --extra", "--extra"},
      {"--extra info", "--extra"},
      {"info --isa \"\"", "--isa: \"\": expected a text"},
      {"check --dump \"\"", "--dump: \"\": expected a text"},
      {"info --tuning \"\"", "--tuning: \"\": expected a text"},
      {"tune --shape 8x8x4x2 --output /nowhere/file",
       "megamoe: --output = /nowhere/file: expected a file that can be written, No such file"},
      {"info --threads 0", "--threads"},
      {"info --ranks many", "--ranks"},
      {"info --transport pigeon", "--transport"},
      {"plan --shape 12", "megamoe: --shape = 12: expected HIDDENxINTERMEDIATExEXPERTSxTOPK"},
      {"plan", "--shape"},
      {"check --scenario A1W1", "megamoe: scenario = A1W1: expected one of A16W16"},
      {"check --scenario A16W16,", "megamoe: scenario = : expected one of A16W16"},
      {"check --shape 61x33x8x3 --scenario A8W4-INT",
       "megamoe: scenario = A8W4-INT: quantise: weights have a reduction of 61: expected an even one with "
       "int4"},
      {"check --routing random", "megamoe: --routing = random: expected uniform, zipf or one"},
      {"bench --shape 8x8x4x2 --tokens 1,x", "megamoe: --tokens = 1,x: expected numbers"},
      {"check /nowhere --shared-experts 1",
       "megamoe: --shared-experts = 1: expected none with the weights of a"},
      {"check --combine-quant-mode 2", "--combine-quant-mode"},
      {"check --combine-comm-mode 3", "--combine-comm-mode"},
      {"check --combine-comm-mode 2", "topo_type = 0: expected 1 or 2 with combine_comm_mode 2"},
      {"check --ranks 4 --topo-type 1 --rank-num-per-server 3",
       "rank_num_per_server = 3: expected a divisor"},
      {"check --activation relu", "megamoe: activation = \"relu\": expected one of swiglu"},
      {"check --activation gelu --activation-beta 2", "activation_params.beta = 2: expected none"},
      {"check /nowhere --activation gelu",
       "megamoe: --activation = gelu: expected none with the weights of a"},
      {"check /nowhere --activation-clamp 7", "megamoe: --activation-clamp = 7: expected none with the"},
      {"check --coded-x --scenario A8W8-FP,A16W16",
       "megamoe: --coded-x: expected scenarios with MX tokens, not A16W16"},
      {"run /nowhere", "megamoe: /nowhere does not exist"},
      {"check --profile tpu", "megamoe: profile = \"tpu\": expected one of cpu, ascend_a2_a3"},
      {"vectors /nowhere", "megamoe: /nowhere is not a directory"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_TRUE(contains(outcome.error, message)) << arguments << ": " << outcome.error;
    EXPECT_TRUE(outcome.error.starts_with("megamoe: ")) << arguments << ": " << outcome.error;
    EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 1) << arguments << outcome.error;
  }
}

TEST(Tool, Plan) {
  const json plans = run_json("plan --shape 64x32x8x2 --ranks 2 --tokens 16");
  ASSERT_EQ(plans.size(), kScenarios);
  for (const json& plan : plans) {
    EXPECT_TRUE(plan.contains("scenario"));
    EXPECT_TRUE(plan.contains("symmetric memory bytes"));
    EXPECT_EQ(plan["rank"], "0 of 2");
  }
  // 4 experts: 2 panels of 64 x 64 bf16 gate and up columns, 2 panels of 32 x 64.
  EXPECT_EQ(plans[0]["packed weight bytes of a rank"], std::to_string(4 * (64 * 64 * 2 + 32 * 64 * 2)));
}

TEST(Tool, PlanNeedsNoMemoryForCalls) {
  // More than this machine can have: rows of 16384 tokens on each of 64 ranks.
  const json plans =
      run_json("plan --shape 7168x2048x256x8 --ranks 64 --tokens 16384 --scenario A16W16 --threads 1");
  const int64_t of_a_rank = std::stoll(plans[0]["symmetric memory bytes"].get<std::string>());
  EXPECT_GT(64 * of_a_rank, int64_t{1} << 42);
}

TEST(Tool, BenchPrintsCeilings) {
  const json bench = run_json("bench --shape 64x32x8x2 --tokens 1,4 --scenario all --repeat 2 --threads 1");
  ASSERT_EQ(bench["rows"].size(), 2 * kScenarios);
  for (const json& row : bench["rows"]) {
    for (const char* figure : {"ms", "gflops", "weight_gbps", "run_efficiency"}) {
      EXPECT_GT(row[figure].get<double>(), 0) << figure;
    }
    // Pairs whose passes differ do not count, and none may be left.
    EXPECT_LE(row["pairs"], row["calls"]);
    EXPECT_EQ(row["efficiency"].is_null(), row["pairs"] == 0);
    EXPECT_FALSE(row["passes"]["read_gbps"].is_null() && row["passes"]["gflops"].is_null());
    for (const char* ceiling : {"linear1_gflops", "linear2_gflops", "read_gbps"}) {
      EXPECT_GT(row["ceilings"][ceiling].get<double>(), 0) << ceiling;
    }
    EXPECT_EQ(row["kernels"].size(), 2u);
    EXPECT_EQ(row["routing"], "uniform");
    double shares = 0;
    for (const auto& [stage, share] : row["stages"].items()) shares += share.get<double>();
    EXPECT_NEAR(shares, 1, 1e-9);
    EXPECT_GT(row["stages"]["linear2"], 0);
    EXPECT_EQ(row["tail"], 0) << "one thread";
    EXPECT_GT(row["idle"], 0);
    EXPECT_LT(row["idle"], 1);
  }
}

TEST(Tool, BenchSaysWhatThreadsWithoutWorkCost) {
  for (const char* ranks : {"", " --ranks 2", " --ranks 2 --transport shm"}) {
    const json rows =
        run_json("bench --shape 64x32x8x2 --tokens 64 --repeat 3 --threads 2" + std::string(ranks))["rows"];
    EXPECT_GT(rows[0]["tail"], 0) << ranks;
    EXPECT_LE(rows[0]["tail"], 1) << ranks;
  }
}

TEST(Tool, BenchNamesWhatRan) {
  const json rows = run_json(
      "bench --shape 64x32x8x2 --tokens 1 --scenario A8W8-INT,A8W4-INT --repeat 1 --isa generic")["rows"];
  const json name = rows[0]["kernels"][0];
  EXPECT_EQ(rows[0]["kernels"], json({name, name}));
  const std::string decoded = name.get<std::string>() + " on strips of decoded codes";
  EXPECT_EQ(rows[1]["kernels"], json({decoded, decoded}));
}

TEST(Tool, BenchesEveryRoutingOfAList) {
  const json bench =
      run_json("bench --shape 64x32x8x2 --tokens 1,4 --routing uniform,one,zipf --repeat 2 --threads 1");
  ASSERT_EQ(bench["rows"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const json& row = bench["rows"][i];
    EXPECT_EQ(row["routing"], i < 2 ? "uniform" : i < 4 ? "one" : "zipf");
    EXPECT_EQ(row["tokens"], i % 2 == 0 ? 1 : 4);
  }
  EXPECT_EQ(bench["rows"][3]["experts"], 2);  // all to the first two
  EXPECT_TRUE(
      contains(run("bench --shape 8x8x4x2 --routing uniform,").error, "--routing = : expected uniform"));
}

TEST(Tool, CliffsComparesNeighbours) {
  const json rows =
      run_json("cliffs --shape 64x32x8x2 --scenario A16W16,A8W4-INT --last 3 --repeat 2 --threads 1");
  // For each scenario and routing three steps and six kinds of subnormal values; then five batches against
  // dense.
  ASSERT_EQ(rows.size(), 2u * (3 * (3 + 6 * 2) + 5));
  for (const json& row : rows) EXPECT_GT(row["speed"].get<double>(), 0) << row;
  EXPECT_EQ(rows[2]["what"], "one more token, uniform");
  EXPECT_EQ(rows[2]["tokens"], 3);
  EXPECT_EQ(rows[3]["what"], "subnormal tokens, uniform");
  EXPECT_EQ(rows[3]["tokens"], 1);
  EXPECT_EQ(rows[4]["tokens"], 4);
  EXPECT_EQ(rows[10]["what"], "subnormal weight scales, uniform");
  EXPECT_EQ(rows[45]["what"], "all to the same experts, against dense");
  EXPECT_EQ(rows[50]["scenario"], "A8W4-INT");
  // People see the worst of each kind, and all that does not hold.
  const Outcome text = run("cliffs --shape 64x32x8x2 --last 3 --repeat 2 --threads 1 --routing one");
  EXPECT_EQ(text.code, 0);
  size_t lines = 0, bad = 0;
  for (size_t at = 0; (at = text.out.find("A16W16", at)) != std::string::npos; ++at) ++lines;
  for (size_t at = 0; (at = text.out.find("  no\n", at)) != std::string::npos; ++at) ++bad;
  EXPECT_GE(lines, 8u) << text.out;
  EXPECT_LE(lines, 8 + bad) << text.out;
}

TEST(Tool, CliffsOfOneKind) {
  const std::string base =
      "cliffs --shape 64x32x8x2 --last 2 --repeat 1 --threads 1 --routing one --compare ";
  EXPECT_EQ(run_json(base + "tokens").size(), 2u);
  EXPECT_EQ(run_json(base + "values").size(), 12u);
  EXPECT_EQ(run_json(base + "dense").size(), 5u);
  EXPECT_TRUE(contains(run(base + "rows").error, "--compare = rows: expected tokens, values or dense"));
}

TEST(Tool, CliffsOverSeveralRanks) {
  for (const char* transport : {"local", "shm"}) {
    const json rows = run_json(
        "cliffs --shape 64x32x8x2 --last 5 --repeat 1 --threads 1 --ranks 2 --routing one --transport " +
        std::string(transport));
    ASSERT_EQ(rows.size(), 2u + 12u + 4u) << transport;
    EXPECT_EQ(rows[0]["tokens"], 2) << "every rank has one, then two, then three";
    EXPECT_EQ(rows[1]["tokens"], 4);
    EXPECT_EQ(rows[14]["tokens"], 4) << "against dense, the same";
  }
}

TEST(Tool, CeilingsOfThisMachine) {
  const json ceilings = run_json("ceilings --threads 1");
  ASSERT_GE(ceilings["rows"].size(), 2u);
  for (const json& row : ceilings["rows"]) {
    EXPECT_GT(row["one_thread"].get<double>(), 0) << row["what"];
    EXPECT_GT(row["all_threads"].get<double>(), 0) << row["what"];
  }
}

TEST(Tool, RanksWithoutExpertsBench) {
  EXPECT_EQ(run_json("bench --shape 64x32x4x2 --tokens 5 --repeat 2 --ranks 3")["rows"].size(), 1u);
}

TEST(Tool, OutputThatCannotBeWrittenIsAnError) {
  const Outcome outcome = run("info >/dev/full");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_TRUE(contains(outcome.error, "the output could not be written")) << outcome.error;
}

class ToolLevel : public testing::TestWithParam<std::string> {};

TEST_P(ToolLevel, Vectors) {
  const auto named = [](const IsaInfo& level) { return GetParam() == level.name; };
  const IsaInfo& level = *std::find_if(isa_levels().begin(), isa_levels().end(), named);
  if (!level.runnable) GTEST_SKIP() << level.name << ": " << level.reason;
  const std::string vectors = std::string(MEGAMOE_TEST_DATA) + "/vectors";
  for (const char* only : {"mm_", "int8_per_token", "cast_", "decode_", "mx_", "nz_", "ir_", "tp_", "tu_"}) {
    const json outcome = run_json("vectors " + vectors + " --only " + only + " --isa " + level.name);
    EXPECT_EQ(outcome["passed"], outcome["cases"]) << level.name << outcome.dump(1);
    EXPECT_GE(outcome["cases"].get<int>(), 1);
  }
  const json processes = run_json("vectors " + vectors + " --only mm_ --transport shm --isa " + level.name);
  EXPECT_EQ(processes["passed"], processes["cases"]) << level.name << processes.dump(1);
}

std::vector<std::string> level_names() {
  std::vector<std::string> names;
  for (const IsaInfo& level : isa_levels()) names.push_back(level.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Levels, ToolLevel, testing::ValuesIn(level_names()),
                         [](const auto& info) { return info.param; });

TEST(Tool, VectorsWritesOutputsAndErrors) {
  test::Scratch scratch;
  const std::string vectors = std::string(MEGAMOE_TEST_DATA) + "/vectors";
  EXPECT_EQ(run("vectors " + vectors + " --only int8_per_token --out " + scratch.file("out")).code, 0);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.file("out/int8_per_token"))) {
    EXPECT_EQ(std::filesystem::file_size(entry.path()),
              std::filesystem::file_size(vectors + "/int8_per_token/" + entry.path().filename().string()));
    ++files;
  }
  EXPECT_EQ(files, 2);

  std::filesystem::create_directories(scratch.file("cases/strange"));
  std::filesystem::create_directories(scratch.file("cases/broken"));
  scratch.write("cases/strange/case.json", R"({"op": "fly", "attrs": {}, "inputs": {}, "expect": {}})");
  scratch.write("cases/broken/case.json", "{");
  const Outcome outcome = run("vectors " + scratch.file("cases") + " --out " + scratch.file("out"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.out, "op fly is not supported")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "error  broken: ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "0 of 2 cases pass")) << outcome.out;
  std::stringstream text;
  text << std::ifstream(scratch.file("out/strange/error.txt")).rdbuf();
  EXPECT_EQ(text.str(), "op fly is not supported\n");
}

}  // namespace
}  // namespace megamoe
