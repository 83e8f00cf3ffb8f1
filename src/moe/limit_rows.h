// How a limit is written down as data, and how it reads as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "moe/limits.h"

namespace megamoe::moe {

/// A number, or the value of a parameter.
struct Bound {
  int64_t number = 0;
  Parameter parameter{};
  bool refers = false;

  constexpr Bound(int64_t value) : number(value) {}                     // NOLINT: implicit by design
  constexpr Bound(Parameter value) : parameter(value), refers(true) {}  // NOLINT
  int64_t value(const Quantities& q) const { return refers ? q[parameter] : number; }
};

/// A few values.
struct ValueSet {
  static constexpr int kMost = 6;
  int64_t values[kMost] = {};
  int count = 0;

  template <class... Values>
  static constexpr ValueSet of(Values... given) {
    static_assert(sizeof...(given) <= kMost);
    return {{static_cast<int64_t>(given)...}, sizeof...(given)};
  }
  constexpr bool contains(int64_t value) const {
    for (int i = 0; i < count; ++i) {
      if (values[i] == value) return true;
    }
    return false;
  }
};

/// What a parameter may be.
struct Allowed {
  enum class Shape { kRange, kSet, kDivisor, kSame };
  Shape shape;
  Bound low = 0, high = 0, multiple = 1;  ///< kDivisor and kSame: low is what it divides or equals
  ValueSet set;

  constexpr Allowed multiple_of(Bound bound) const {
    Allowed result = *this;
    result.multiple = bound;
    return result;
  }
  bool holds(int64_t value, const Quantities& q) const;
};

/// A limit holds only where the parameter has one of these values.
struct Condition {
  Parameter parameter{};
  ValueSet values;
  bool used = false;
};

struct Limit {
  static constexpr int kMostConditions = 2;
  unsigned profiles;  ///< a bit for each
  Parameter parameter;
  Allowed allowed;
  Condition when[kMostConditions];
};

std::span<const Limit> limit_rows();
/// Limits that hold for all profiles alike.
bool holds_everywhere(const Limit& limit);
inline bool holds_for(const Limit& limit, Profile profile) {
  return (limit.profiles >> static_cast<unsigned>(profile) & 1u) != 0;
}

enum class ParameterKind {
  kInteger,
  kSwitch,
  kType,  ///< an element type as a setting
  kActivationName,
  kClamp,
  kPresence,
  kTensorType,
  kMaskType,  ///< bool is given as uint8
  kTensorLayout,
  kTensorForm,
  kTokenCount,
  kExpertCount
};

struct ParameterInfo {
  LimitStage stage;
  ParameterKind kind;
  const char* name;
};
const ParameterInfo& parameter_info(Parameter parameter);

/// "hidden", "type of x", "tokens of x".
std::string parameter_text(Parameter parameter);
/// "hidden = 7", "x has type int8", "bias1 is missing".
std::string got_text(Parameter parameter, int64_t value);
/// "a multiple of 64 in [1024, 8192]"; with values, "4 (ep_world_size)" instead of "ep_world_size".
std::string allowed_text(const Limit& limit, const Quantities* values);
/// The argument of the first version that says it: "moe_expert_num", "type of weight1"; "-" where none does.
std::string first_version_text(Parameter parameter);
/// "topo_type 1 or 2 and combine_comm_mode 0"; empty without conditions.
std::string when_text(const Limit& limit);

}  // namespace megamoe::moe
