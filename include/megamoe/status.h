// Errors as values: a code and a message that names the argument, what was expected and what came.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "megamoe/export.h"

namespace megamoe {

/// Kind of an error. Numeric values are part of the C interface and of the exchange between ranks.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 1,  ///< an argument has a wrong value, shape or layout
  kInvalidType = 2,      ///< an argument has a wrong data type
  kUnsupported = 3,      ///< valid by the documents, not available in this build or on this machine
  kCapacity = 4,         ///< more tokens than the buffer has room for
  kSettingsDiffer = 5,   ///< the ranks of a group were created with different settings
  kPeerFailed = 6,       ///< another rank died, failed or left
  kTimedOut = 7,         ///< a wait passed its deadline
  kOutOfMemory = 8,      ///< memory could not be reserved
  kSystem = 9,           ///< the operating system refused something
  kClosed = 10,          ///< the object was destroyed
  kDataLoss = 11,        ///< a file is truncated or malformed
};

/// Name of a code as it stands in messages, for example "invalid argument".
MEGAMOE_API const char* code_name(Code code);

/// Outcome of an operation. Messages read "argument[index] = got: expected".
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  bool is_ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return is_ok(); }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT

  bool is_ok() const { return state_.index() == 0; }
  explicit operator bool() const { return is_ok(); }
  /// Ok where there is a value. value(), * and -> need one: std::bad_variant_access otherwise.
  Status status() const { return is_ok() ? Status::ok() : std::get<1>(state_); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

/// Returns early from a function that returns Status or Result when `expression` is not ok.
#define MEGAMOE_RETURN_IF_ERROR(expression)                                                                 \
  do {                                                                                                      \
    if (::megamoe::Status megamoe_status_ = (expression); !megamoe_status_.is_ok()) return megamoe_status_; \
  } while (false)

}  // namespace megamoe
