// Work of the library without the interpreter lock.
#pragma once

#include <nanobind/nanobind.h>

namespace megamoe::python {

/// Runs `work`, which returns Status or Result and touches no Python object, without the interpreter lock.
template <class Work>
auto unlocked(Work&& work) {
  nanobind::gil_scoped_release release;
  return work();
}

}  // namespace megamoe::python
