// Gathers the cases at and past the limits of every profile.
#include "limit_cases.h"

#include <cfloat>
#include <cmath>

namespace megamoe::test {
namespace {

constexpr ConfigCase kConfigCases[] = {
#define CONFIG_CASE(profile, parameter, kind, change, error) \
  {{#profile, #parameter, #kind, error},                     \
   []([[maybe_unused]] BufferConfig& c, [[maybe_unused]] int64_t& ranks) { (void)(change); }},
#include "limit_setting_cases.inc"
#include "limit_size_cases.inc"
#undef CONFIG_CASE
};

constexpr LayerCase kLayerCases[] = {
#define LAYER_CASE(profile, scenario, parameter, kind, change, error) \
  {{#profile, #parameter, #kind, error}, scenario, []([[maybe_unused]] LimitSetup& s) { (void)(change); }},
#include "limit_activation_cases.inc"
#include "limit_scale_cases.inc"
#include "limit_shared_cases.inc"
#include "limit_weight_cases.inc"
#undef LAYER_CASE
};

constexpr CallCase kCallCases[] = {
#define CALL_CASE(profile, scenario, parameter, kind, change, error) \
  {{#profile, #parameter, #kind, error},                             \
   scenario,                                                         \
   []([[maybe_unused]] LimitSetup& s, [[maybe_unused]] CallArgs& a) { (void)(change); }},
#include "limit_call_cases.inc"
#undef CALL_CASE
};

}  // namespace

std::span<const ConfigCase> config_cases() {
  return kConfigCases;
}
std::span<const LayerCase> layer_cases() {
  return kLayerCases;
}
std::span<const CallCase> call_cases() {
  return kCallCases;
}

std::vector<LimitCase> limit_cases() {
  std::vector<LimitCase> all(std::begin(kConfigCases), std::end(kConfigCases));
  all.insert(all.end(), std::begin(kLayerCases), std::end(kLayerCases));
  all.insert(all.end(), std::begin(kCallCases), std::end(kCallCases));
  return all;
}

}  // namespace megamoe::test
