// The table of parameters at and past their limits: its cases, which limit_cases.cc gathers from the
// *_cases.inc files.
#pragma once

#include <span>

#include "limit_setup.h"

namespace megamoe::test {

/// What every case says: under which profile, of which parameter, what it tries, and the whole error (empty =
/// accepted).
struct LimitCase {
  const char* profile;
  const char* parameter;
  const char* kind;
  const char* error;

  bool accepted() const { return *error == '\0'; }
  std::string title() const { return std::string(profile) + " " + parameter + " " + kind; }
};

/// Settings of a buffer.
struct ConfigCase : LimitCase {
  void (*change)(BufferConfig& c, int64_t& ranks);
};
/// A layer on a legal buffer.
struct LayerCase : LimitCase {
  const char* scenario;
  void (*change)(LimitSetup& s);
};
/// A call of a legal layer.
struct CallCase : LimitCase {
  const char* scenario;
  void (*change)(LimitSetup& s, CallArgs& a);
};

std::span<const ConfigCase> config_cases();
std::span<const LayerCase> layer_cases();
std::span<const CallCase> call_cases();
/// All of them.
std::vector<LimitCase> limit_cases();

}  // namespace megamoe::test
