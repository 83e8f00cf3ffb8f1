// What a profile allows: rows of data, and the one check over them.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megamoe/status.h"
#include "megamoe/tensor.h"

namespace megamoe::moe {

/// Most experts of all ranks.
inline constexpr int64_t kMaxExperts = int64_t{1} << 20;
/// Most shared experts of one rank.
inline constexpr int64_t kMaxSharedExperts = 4;

enum class Profile { kCpu, kAscendA2A3, kAscend950, kMegaMoeV1 };

struct ProfileInfo {
  Profile profile;
  const char* name;
  const char* summary;
};
std::span<const ProfileInfo> profiles();
const ProfileInfo& profile_info(Profile profile);
/// The profile of a name, or an error that lists the names.
Result<Profile> find_profile(std::string_view name);

/// When a parameter is known: when the buffer is made, when the layer is planned, in a call.
enum class LimitStage { kConfig, kLayer, kCall };

enum class Parameter : int {
#define MEGAMOE_PARAMETER(enumerator, stage, kind, name) enumerator,
#include "moe/parameters.inc"
#undef MEGAMOE_PARAMETER
};
inline constexpr size_t kParameterCount = 0
#define MEGAMOE_PARAMETER(enumerator, stage, kind, name) +1
#include "moe/parameters.inc"
#undef MEGAMOE_PARAMETER
    ;

/// Values of parameters that are no numbers: element types, layouts and activations stand for themselves.
enum class Form : int64_t { kStacked, kPerExpert };
enum class Given : int64_t { kNone, kGiven };
/// A clamp is the bits of its float32, which grow with it, or none.
enum class ClampValue : int64_t { kNone = -1, kZero = 0, kLargest = 0x7f7fffff };

/// What is known of the parameters. Limits on unknown parameters are not checked.
class Quantities {
 public:
  template <class Value>
  void set(Parameter parameter, Value value) {
    values_[static_cast<size_t>(parameter)] = static_cast<int64_t>(value);
    known_.set(static_cast<size_t>(parameter));
  }
  bool knows(Parameter parameter) const { return known_[static_cast<size_t>(parameter)]; }
  int64_t operator[](Parameter parameter) const { return values_[static_cast<size_t>(parameter)]; }

 private:
  std::array<int64_t, kParameterCount> values_{};
  std::bitset<kParameterCount> known_;
};

/// The first limit that is broken among those that can be judged at `stage` and not before:
/// "hidden = 7: expected a multiple of 64 in [1024, 8192] (profile ascend_950)".
Status check_limits(Profile profile, LimitStage stage, const Quantities& quantities);

/// Whether the limits of a profile allow what no single rank's arguments show: kRepeatedExperts,
/// kUnequalTokens.
bool allows(Profile profile, Parameter behaviour);
/// Whether a profile takes a type, by the limits that have no condition.
bool allows(Profile profile, Parameter parameter, DType type);

/// One limit as text.
struct LimitText {
  std::string parameter, allowed, when;
  /// Where the parameter stands in a call of the profile's own operator; empty where that is mega_moe.
  std::string argument;
};
std::vector<LimitText> limit_texts(Profile profile);

}  // namespace megamoe::moe
