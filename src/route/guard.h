// The border of a public routing operator: no exception passes, floating-point control is the default inside.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "base/fp_env.h"
#include "megamoe/status.h"

namespace megamoe::route {

template <class Body>
auto guarded(const char* name, Body&& body) -> decltype(body()) {
  const base::DefaultFpEnv fp_env;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, std::string(name) + " has no memory for its work space");
  } catch (const std::length_error&) {
    return Status(Code::kOutOfMemory, std::string(name) + " has no memory for its work space");
  }
}

}  // namespace megamoe::route
