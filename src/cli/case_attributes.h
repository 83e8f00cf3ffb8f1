// Reads attributes of a case into the arguments of an operator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/case_file.h"

namespace megamoe::cli {

/// Reads attributes until the first one of a wrong type. An absent one leaves its argument as it is.
class Attributes {
 public:
  explicit Attributes(const Case& test) : test_(test) {}
  void read(const char* name, int64_t& out) { take(test_.integer(name, out), out); }
  void read(const char* name, int& out) {
    int64_t value = out;
    take(test_.integer(name, value), value);
    out = static_cast<int>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
  }
  void read(const char* name, double& out) { take(test_.number(name, out), out); }
  void read(const char* name, bool& out) { take(test_.flag(name, out), out); }
  void read(const char* name, std::string& out) { take(test_.text(name, out), out); }
  void read(const char* name, DType& out) {
    int code = dtype_op_code(out);
    read(name, code);
    if (status_) take(dtype_from_op_code(code), out);
  }
  void read(const char* name, std::optional<int64_t>& out) {
    int64_t value = 0;
    read(name, value);
    const auto attr = test_.attrs.find(name);
    if (attr != test_.attrs.end() && std::holds_alternative<int64_t>(attr->second)) out = value;
  }
  void read(const char* name, std::vector<double>& out) { take(test_.numbers(name), out); }
  void read(const char* name, std::vector<int64_t>& out) {
    std::vector<double> numbers;
    take(test_.numbers(name), numbers);
    for (double number : numbers) out.push_back(std::llround(number));
  }
  const Status& status() const { return status_; }

 private:
  template <class T>
  void take(Result<T> result, T& out) {
    if (!status_) return;
    if (result) {
      out = std::move(*result);
    } else {
      status_ = result.status();
    }
  }
  const Case& test_;
  Status status_;
};

}  // namespace megamoe::cli
