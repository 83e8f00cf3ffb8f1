// megamoe check, run as its users run it: every parameter, profile, level and transport.
#include <gtest/gtest.h>

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

TEST(Tool, CheckOnEveryLevelAndTransport) {
  for (const IsaInfo& level : isa_levels()) {
    if (!level.runnable) continue;
    for (const char* ranks : {"--ranks 1", "--ranks 2 --transport local", "--ranks 3 --transport local",
                              "--ranks 4 --transport shm"}) {
      for (const char* shape : {"62x34x8x3 --scenario all", "61x33x8x3 --scenario A16W16,A8W8-INT,A8W8-FP"}) {
        const json outcome = run_json("check --tokens 19 --shape " + std::string(shape) + " --isa " +
                                      level.name + " " + ranks);
        EXPECT_EQ(outcome.size(), contains(shape, "all") ? kScenarios : 3u);
        for (const json& scenario : outcome) {
          EXPECT_TRUE(scenario["first_differing_stage"].is_null())
              << level.name << " " << ranks << scenario.dump(1);
        }
      }
    }
  }
}

/// Scenarios of a result that lists them under "scenario".
std::string scenarios_of(const json& rows) {
  std::string names;
  for (const json& row : rows) names += row["scenario"].get<std::string>() + " ";
  return names;
}

TEST(Tool, ProfilesJudgeALayer) {
  const struct {
    const char *profile, *shape, *scenarios;
  } cases[] = {
      {"ascend_a2_a3", "1024x512x4x2", "A16W16 A8W8-INT A8W4-INT "},
      {"ascend_950", "1024x256x4x2 --shared-experts 1", "A8W8-FP A8W8-FP-E5M2 A8W4-FP A4W4-FP "},
      {"mega_moe_v1", "4096x512x6x6", "A8W8-FP A8W8-FP-E5M2 "},
  };
  test::Scratch scratch;
  const std::string tuning = scratch.file("tuning.json");
  for (const auto& [profile, shape, scenarios] : cases) {
    const std::string options = " --ranks 2 --profile " + std::string(profile) + " --shape ";
    const json checked = run_json("check --tokens 2" + options + shape);
    EXPECT_EQ(scenarios_of(checked), scenarios);
    for (const json& scenario : checked) {
      EXPECT_TRUE(scenario["first_differing_stage"].is_null()) << profile << scenario.dump(1);
    }
    const std::string sizes = std::string(shape).substr(0, std::string(shape).find(' '));
    EXPECT_EQ(scenarios_of(run_json("plan --tokens 2 --scenario all" + options + sizes)), scenarios);
    for (const std::string& command :
         {std::string("check --tokens 2"), std::string("plan --tokens 2"), std::string("bench --tokens 2"),
          std::string("cliffs"), "tune --tokens 2 --output " + tuning}) {
      const Outcome outcome = run(command + options + "1000x512x6x6 --scenario " +
                                  std::string(scenarios).substr(0, std::string(scenarios).find(' ')));
      EXPECT_EQ(outcome.code, 2) << command;
      EXPECT_TRUE(contains(outcome.error, "hidden = 1000: expected ")) << outcome.error;
      EXPECT_TRUE(contains(outcome.error, "(profile " + std::string(profile) + ")")) << outcome.error;
    }
    // Before the layer is made, which would take all memory there is.
    for (const std::string& command : {std::string("plan"), std::string("check"), std::string("bench"),
                                       std::string("cliffs"), "tune --output " + tuning}) {
      const Outcome outcome = run(command + options + "16777216x8388608x6x6");
      EXPECT_EQ(outcome.code, 2) << command;
      EXPECT_TRUE(contains(outcome.error, "hidden = 16777216: expected ")) << command << outcome.error;
    }
  }
  const Outcome gelu = run("check --ranks 2 --profile ascend_950 --shape 8192x3072x1024x8 --activation gelu");
  EXPECT_TRUE(contains(gelu.error, "activation_clamp = none: expected the largest float32")) << gelu.error;
  const Outcome shared =
      run("check --ranks 2 --profile ascend_a2_a3 --shape 8192x3072x256x8 --shared-experts 1");
  EXPECT_TRUE(contains(shared.error, "shared_weight1 has 1 experts: expected 0")) << shared.error;
  EXPECT_EQ(scenarios_of(run_json("bench --scenario all --profile ascend_950 --ranks 2 --repeat 1 --tokens 2 "
                                  "--shape 1024x256x4x2")["rows"]),
            "A8W8-FP A8W8-FP-E5M2 A8W4-FP A4W4-FP ");
  // Of the scenarios that A2 and A3 take one, so that the others do not run; cliffs also runs a dense layer,
  // which no profile judges.
  const std::string judged =
      " --ranks 2 --profile ascend_a2_a3 --shape 1024x512x4x2 --scenario A8W8-INT --repeat 1";
  for (const json& row : run_json("cliffs --last 1 --routing one" + judged)) {
    EXPECT_EQ(row["scenario"], "A8W8-INT");
  }
  for (const json& row : run_json("tune --seconds 0 --tokens 2 --output " + tuning + judged)) {
    EXPECT_EQ(row["scenario"], "A8W8-INT");
  }
}

// What the operator can be asked for, on two domains of two ranks each.
TEST(Tool, ChecksEveryParameter) {
  const std::string layer = "check --shape 96x32x8x3 --tokens 9 --ranks 4 ";
  const struct {
    const char* options;
    size_t scenarios;
  } cases[] = {
      {"--combine-comm-mode 1", kScenarios},
      {"--combine-comm-mode 2 --topo-type 1 --topk-weights-type 1", kScenarios},
      {"--combine-comm-mode 2 --topo-type 2 --rank-num-per-server 4", kScenarios},
      {"--topo-type 2 --rank-num-per-server 2 --combine-quant-mode 4", kScenarios},
      {"--activation gelu", kScenarios},
      {"--activation situglu --activation-beta 1.5 --activation-linear-beta 2", kScenarios},
      {"--activation swigluoai --activation-alpha 1.5 --activation-clamp 0.25", kScenarios},
      {"--activation swiglustep --activation-clamp 0.25", kScenarios},
      {"--coded-x --shared-experts 2", 4},
      {"--coded-x --scenario A4W4-FP --combine-comm-mode 1", 1},
      {"--shared-experts 1 --scenario A16W4-GROUP,A8W4-GROUP,A16W8-BLOCK,A8W8-BLOCK", 4},
  };
  for (const auto& [options, scenarios] : cases) {
    const json outcome = run_json(layer + options);
    EXPECT_EQ(outcome.size(), scenarios) << options;
    for (const json& scenario : outcome) {
      EXPECT_TRUE(scenario["first_differing_stage"].is_null()) << options << scenario.dump(1);
    }
  }
  // The parameters arrive: other numbers come out.
  const test::Scratch scratch;
  for (const auto& [dump, options] :
       {std::pair("plain", ""), std::pair("clamped", "--activation-clamp 0.25"),
        std::pair("gelu", "--activation gelu"), std::pair("coded", "--coded-x")}) {
    EXPECT_EQ(run(layer + "--scenario A8W8-FP " + options + " --dump " + scratch.file(dump)).code, 0);
  }
  const auto first_stage = [&](const char* other) {
    return run("diff " + scratch.file("plain/fast") + " " + scratch.file(std::string(other) + "/fast")).out;
  };
  EXPECT_TRUE(contains(first_stage("clamped"), "First difference: activation")) << first_stage("clamped");
  EXPECT_TRUE(contains(first_stage("coded"), "No stage differs")) << first_stage("coded");
}

}  // namespace
}  // namespace megamoe
