// The border of every function of the C interface.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "megamoe/status.h"

namespace megamoe::c_api {

/// Code of a status; the message of a failure becomes the last error of this thread.
int32_t report(const Status& status) noexcept;

/// Runs body() -> Status; whatever it throws becomes a code.
/// The texts are short enough to need no memory.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(Status(Code::kOutOfMemory, "out of memory"));
  } catch (...) {
    return report(Status(Code::kSystem, "internal error"));
  }
}

inline Status null_argument(const char* name) {
  return Status(Code::kInvalidArgument, std::string(name) + " = null: expected a pointer");
}

/// Fills a struct of the caller's size: known fields from `defaults`, the rest zero.
template <class Struct>
void init_struct(Struct* out, size_t struct_size, Struct defaults) {
  if (out == nullptr || struct_size < sizeof(size_t)) return;
  defaults.struct_size = struct_size;
  std::memset(static_cast<void*>(out), 0, struct_size);
  std::memcpy(static_cast<void*>(out), &defaults, std::min(struct_size, sizeof(Struct)));
}

}  // namespace megamoe::c_api
