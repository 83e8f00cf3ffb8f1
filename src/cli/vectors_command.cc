// megamoe vectors: runs every test case of a directory and says which pass.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/case_compare.h"
#include "cli/case_file.h"
#include "cli/case_run.h"
#include "cli/command.h"
#include "cli/progress.h"

namespace megamoe::cli {
namespace {

namespace fs = std::filesystem;

struct VectorsOptions {
  std::string directory;
  std::string only;
  std::string out;
};

/// Outcome of one case. An expected error that came is a pass, with its text as detail.
struct Verdict {
  std::string name;
  bool pass = false;
  bool error = false;  ///< the case could not be run
  std::string detail;
};

Status write_outputs(const Case& test, const CaseOutputs& outputs, const std::string& directory) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    MEGAMOE_RETURN_IF_ERROR(write_tensor(directory, test.expected[i], outputs[i]));
  }
  return Status::ok();
}

Status write_error(const std::string& directory, const std::string& message) {
  const std::string path = (fs::path(directory) / "error.txt").string();
  std::ofstream file(path);
  file << message << "\n";
  return file.flush() ? Status::ok() : Status(Code::kSystem, path + " cannot be written");
}

Verdict judge(const Case& test, const Result<CaseOutputs>& outputs) {
  Verdict verdict;
  if (test.expects_error()) {
    if (outputs) {
      verdict.detail = "no error: expected one that names " + test.error_arg + " (" + test.expect_error + ")";
      return verdict;
    }
    const std::string message = outputs.status().message();
    verdict.pass = message.find(test.error_arg) != std::string::npos;
    verdict.detail = verdict.pass ? message : message + ": expected an error that names " + test.error_arg;
    return verdict;
  }
  if (!outputs) {
    verdict.error = true;
    verdict.detail = outputs.status().message();
    return verdict;
  }
  for (size_t i = 0; i < test.expected.size(); ++i) {
    const CompareResult result = compare(test.expected[i], (*outputs)[i]);
    if (!result.pass) {
      verdict.detail = result.message;
      return verdict;
    }
  }
  verdict.pass = true;
  return verdict;
}

Verdict run_one(const fs::path& path, const VectorsOptions& options, const CommonOptions& common) {
  Verdict verdict;
  auto test = load_case(path.string());
  if (!test) {
    verdict.error = true;
    verdict.detail = test.status().message();
  } else {
    const Result<CaseOutputs> outputs = run_case(*test, common);
    verdict = judge(*test, outputs);
    if (!options.out.empty()) {
      const std::string directory = (fs::path(options.out) / path.filename()).string();
      std::error_code error;
      fs::create_directories(directory, error);
      const Status written = outputs ? write_outputs(*test, *outputs, directory)
                                     : write_error(directory, outputs.status().message());
      if (!written) {
        verdict.pass = false;
        verdict.error = true;
        verdict.detail = written.message();
      }
    }
  }
  verdict.name = path.filename().string();
  return verdict;
}

const char* word(const Verdict& verdict) {
  return verdict.pass ? "pass" : verdict.error ? "error" : "fail";
}

int run_vectors(const CommonOptions& common, const VectorsOptions& options) {
  std::error_code error;
  if (!fs::is_directory(options.directory, error)) {
    return bad_input(Status(Code::kInvalidArgument,
                            options.directory + " is not a directory: expected one with test cases"));
  }
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(options.directory, error)) {
    const std::string name = entry.path().filename().string();
    if (fs::exists(entry.path() / "case.json", error) && name.find(options.only) != std::string::npos) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    return bad_input(Status(Code::kInvalidArgument,
                            options.directory + " has no case" +
                                (options.only.empty() ? "" : " whose name contains " + options.only) +
                                ": expected directories with a case.json"));
  }
  Progress progress;
  nlohmann::ordered_json lines = nlohmann::ordered_json::array();
  int64_t passed = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    progress.show(paths[i].filename().string(), static_cast<int64_t>(i), static_cast<int64_t>(paths.size()));
    const Verdict verdict = run_one(paths[i], options, common);
    passed += verdict.pass;
    progress.clear();
    if (common.json) {
      lines.push_back({{"case", verdict.name}, {"verdict", word(verdict)}, {"detail", verdict.detail}});
    } else {
      std::printf("%-5s  %s%s%s\n", word(verdict), verdict.name.c_str(), verdict.detail.empty() ? "" : ": ",
                  verdict.detail.c_str());
    }
  }
  const auto count = static_cast<int64_t>(paths.size());
  if (common.json) {
    const nlohmann::ordered_json result = {
        {"passed", passed}, {"cases", count}, {"results", std::move(lines)}};
    std::printf("%s\n", result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    std::printf("%lld of %lld cases pass\n", static_cast<long long>(passed), static_cast<long long>(count));
  }
  return passed == count ? kSuccess : kFailed;
}

}  // namespace

void add_vectors(CLI::App& app, const CommonOptions& common, std::function<int()>& action) {
  CLI::App* command = app.add_subcommand("vectors", "Run the test cases of a directory");
  auto options = std::make_shared<VectorsOptions>();
  command->add_option("directory", options->directory, "Directory with one directory per case")->required();
  command->add_option("--only", options->only, "Only cases whose name contains this text")->type_name("TEXT");
  command->add_option("--out", options->out, "Write outputs (and error.txt) under this directory")
      ->type_name("DIR");
  command->callback(
      [&common, &action, options] { action = [&common, options] { return run_vectors(common, *options); }; });
}

}  // namespace megamoe::cli
