// Runs the built tool as its users run it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "checkpoint/scratch.h"

namespace megamoe::test {

inline constexpr size_t kScenarios = 12;  // rows of the scenario table

struct Outcome {
  int code = -1;
  std::string out, error;
};

/// Runs the tool with a command line for the shell.
inline Outcome run(const std::string& arguments) {
  Scratch scratch;
  const std::string command = std::string(MEGAMOE_TOOL) + " " + arguments + " 2>" + scratch.file("stderr");
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.out.append(buffer, n);
  const int state = pclose(pipe);
  outcome.code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  std::stringstream text;
  text << std::ifstream(scratch.file("stderr")).rdbuf();
  outcome.error = text.str();
  return outcome;
}

inline nlohmann::json run_json(const std::string& arguments, int code = 0) {
  const Outcome outcome = run(arguments + " --json");
  EXPECT_EQ(outcome.code, code) << outcome.out << outcome.error;
  nlohmann::json value = nlohmann::json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(value.is_discarded()) << outcome.out;
  return value;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace megamoe::test
