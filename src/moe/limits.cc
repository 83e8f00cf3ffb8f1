// The limit table and its one check.
#include "moe/limits.h"

#include <algorithm>
#include <limits>
#include <string>

#include "activation/params.h"
#include "base/quoted.h"
#include "comm/limits.h"
#include "megamoe/tensor.h"
#include "moe/limit_rows.h"

namespace megamoe::moe {
namespace {

constexpr ProfileInfo kProfiles[] = {
    {Profile::kCpu, "cpu", "only what the arithmetic and the layout of the memory need"},
    {Profile::kAscendA2A3, "ascend_a2_a3", "the MegaMoE operator on Atlas A2 and A3 products"},
    {Profile::kAscend950, "ascend_950", "the MegaMoE operator on Ascend 950PR and 950DT products"},
    {Profile::kMegaMoeV1, "mega_moe_v1", "the first version of the MegaMoE operator"},
};

// The words that rows are written with.
constexpr unsigned bit(Profile profile) {
  return 1u << static_cast<unsigned>(profile);
}
constexpr unsigned kCpu = bit(Profile::kCpu);
constexpr unsigned kA2A3 = bit(Profile::kAscendA2A3);
constexpr unsigned k950 = bit(Profile::kAscend950);
constexpr unsigned kV1 = bit(Profile::kMegaMoeV1);
constexpr unsigned kAscend = kA2A3 | k950 | kV1;
constexpr unsigned kEvery = kCpu | kAscend;

constexpr Allowed range(Bound low, Bound high) {
  return {Allowed::Shape::kRange, low, high, 1, {}};
}
template <class... Values>
constexpr Allowed one_of(Values... values) {
  return {Allowed::Shape::kSet, 0, 0, 1, ValueSet::of(values...)};
}
constexpr Allowed divisor_of(Parameter parameter) {
  return {Allowed::Shape::kDivisor, parameter, 0, 1, {}};
}
constexpr Allowed same_as(Parameter parameter) {
  return {Allowed::Shape::kSame, parameter, 0, 1, {}};
}
template <class... Values>
constexpr Condition when(Parameter parameter, Values... values) {
  return {parameter, ValueSet::of(values...), true};
}

constexpr bool kNo = false;
constexpr bool kYes = true;
constexpr int64_t kMostRanks = comm::kMaxRanks;
constexpr int64_t kUInt32Max = std::numeric_limits<uint32_t>::max();

using enum Parameter;
using Act = activation::ActivationKind;

constexpr Limit kLimits[] = {
#define MEGAMOE_LIMIT(profiles, parameter, allowed, ...) {profiles, parameter, allowed, {__VA_ARGS__}},
#include "moe/limits.inc"
#undef MEGAMOE_LIMIT
};

constexpr LimitStage kStages[] = {
#define MEGAMOE_PARAMETER(enumerator, stage, kind, name) LimitStage::stage,
#include "moe/parameters.inc"
#undef MEGAMOE_PARAMETER
};

/// When everything that a limit looks at is known.
constexpr LimitStage stage_of(const Limit& limit) {
  LimitStage stage = kStages[static_cast<size_t>(limit.parameter)];
  const auto look = [&stage](Parameter parameter) {
    stage = std::max(stage, kStages[static_cast<size_t>(parameter)]);
  };
  for (const Bound& bound : {limit.allowed.low, limit.allowed.high, limit.allowed.multiple}) {
    if (bound.refers) look(bound.parameter);
  }
  for (const Condition& condition : limit.when) {
    if (condition.used) look(condition.parameter);
  }
  return stage;
}

bool applies(const Limit& limit, const Quantities& q) {
  for (const Bound& bound : {limit.allowed.low, limit.allowed.high, limit.allowed.multiple}) {
    if (bound.refers && !q.knows(bound.parameter)) return false;
  }
  for (const Condition& condition : limit.when) {
    if (!condition.used) continue;
    if (!q.knows(condition.parameter) || !condition.values.contains(q[condition.parameter])) return false;
  }
  return q.knows(limit.parameter);
}

}  // namespace

std::span<const Limit> limit_rows() {
  return kLimits;
}

bool holds_everywhere(const Limit& limit) {
  return limit.profiles == kEvery;
}

bool Allowed::holds(int64_t value, const Quantities& q) const {
  switch (shape) {
    case Shape::kRange:
      return value >= low.value(q) && value <= high.value(q) && value % multiple.value(q) == 0;
    case Shape::kSet:
      return set.contains(value);
    case Shape::kDivisor:
      return value > 0 && low.value(q) % value == 0;
    case Shape::kSame:
      return value == low.value(q);
  }
  return false;
}

std::span<const ProfileInfo> profiles() {
  return kProfiles;
}

const ProfileInfo& profile_info(Profile profile) {
  return kProfiles[static_cast<size_t>(profile)];
}

Result<Profile> find_profile(std::string_view name) {
  std::string names;
  for (const ProfileInfo& info : kProfiles) {
    if (name == info.name) return info.profile;
    names += (names.empty() ? "" : ", ") + std::string(info.name);
  }
  return Status(Code::kInvalidArgument, "profile = " + base::quoted(name) + ": expected one of " + names);
}

Status check_limits(Profile profile, LimitStage stage, const Quantities& quantities) {
  for (const Limit& limit : kLimits) {
    if (!holds_for(limit, profile) || stage_of(limit) != stage) continue;
    if (!applies(limit, quantities)) continue;
    const int64_t value = quantities[limit.parameter];
    if (limit.allowed.holds(value, quantities)) continue;
    std::string text = got_text(limit.parameter, value) + ": expected " + allowed_text(limit, &quantities);
    if (const std::string when = when_text(limit); !when.empty()) text += " with " + when;
    if (!holds_everywhere(limit)) text += std::string(" (profile ") + profile_info(profile).name + ")";
    const bool type = parameter_info(limit.parameter).kind == ParameterKind::kTensorType;
    return Status(type ? Code::kInvalidType : Code::kInvalidArgument, std::move(text));
  }
  return Status::ok();
}

namespace {

bool allows_value(Profile profile, Parameter parameter, int64_t value) {
  return std::none_of(std::begin(kLimits), std::end(kLimits), [&](const Limit& limit) {
    return holds_for(limit, profile) && limit.parameter == parameter && !limit.when[0].used &&
           !limit.allowed.set.contains(value);
  });
}

}  // namespace

bool allows(Profile profile, Parameter behaviour) {
  return allows_value(profile, behaviour, true);
}
bool allows(Profile profile, Parameter parameter, DType type) {
  return allows_value(profile, parameter, static_cast<int64_t>(type));
}

std::vector<LimitText> limit_texts(Profile profile) {
  std::vector<LimitText> texts;
  for (const Limit& limit : kLimits) {
    if (!holds_for(limit, profile)) continue;
    texts.push_back({parameter_text(limit.parameter), allowed_text(limit, nullptr), when_text(limit),
                     profile == Profile::kMegaMoeV1 ? first_version_text(limit.parameter) : ""});
  }
  return texts;
}

}  // namespace megamoe::moe
