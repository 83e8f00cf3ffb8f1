// Turns a Status into a Python exception.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "megamoe/status.h"

namespace megamoe::python {

/// Defines Code and DeadlineError in the module.
void bind_errors(nanobind::module_& module);

/// Raises the exception of a status that is not ok. The caller holds the interpreter lock.
[[noreturn]] void raise(const Status& status);

inline void raise_if_error(const Status& status) {
  if (!status.is_ok()) raise(status);
}

/// An integer or a text of the caller, or the error that names the argument, as settings.py words it.
int to_int(const char* name, nanobind::handle value);
std::string to_text(const char* name, nanobind::handle value);

template <class T>
T value_or_raise(Result<T> result) {
  if (!result.is_ok()) raise(result.status());
  return std::move(result).value();
}

}  // namespace megamoe::python
