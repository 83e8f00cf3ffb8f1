// A check of options whose empty text would mean nothing.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace megamoe::cli {

inline CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("\"\": expected a text") : std::string();
      },
      "");
}

}  // namespace megamoe::cli
