// The table of quant_modes and its reading.
#include "route/quant_modes.h"

#include "megamoe/routing.h"
#include "route/check.h"

namespace megamoe::route {
namespace {

constexpr int64_t kCopyMode = -1;

constexpr QuantMode kModes[] = {
#define MEGAMOE_QUANT_MODE(mode, rule, floor_rule, scale_dims, smooth, drop_pad, permute) \
  {mode, quant::QuantRule::rule, quant::QuantRule::floor_rule, scale_dims, Smooth::smooth, drop_pad, permute},
#include "route/quant_modes.inc"
#undef MEGAMOE_QUANT_MODE
};

bool allowed(const QuantMode& mode, ModeUse use) {
  return use == ModeUse::kDropless || (use == ModeUse::kDropPad ? mode.drop_pad : mode.permute);
}

std::string mode_list(ModeUse use) {
  std::string list = std::to_string(kCopyMode);
  for (const QuantMode& mode : kModes) {
    if (allowed(mode, use)) list += ", " + std::to_string(mode.mode);
  }
  return list + (use == ModeUse::kDropPad ? " with drop_pad_mode 1" : "");
}

}  // namespace

Result<RowMode> row_mode(int64_t quant_mode, const std::string& mx_scale, ModeUse use) {
  RowMode result;
  for (const QuantMode& mode : kModes) {
    if (mode.mode == quant_mode && allowed(mode, use)) result.mode = &mode;
  }
  if (result.mode == nullptr && quant_mode != kCopyMode) {
    return wrong_value("quant_mode", quant_mode, "one of " + mode_list(use));
  }
  const bool floor = mx_scale == "floor";
  if (!floor && mx_scale != "round_up") return wrong_value("mx_scale", mx_scale, "round_up or floor");
  if (floor && (result.mode == nullptr || result.mode->floor_rule == result.mode->rule)) {
    return wrong_value("mx_scale", mx_scale, "round_up with quant_mode " + std::to_string(quant_mode));
  }
  if (result.mode != nullptr) {
    result.rule = &quant::rule_info(floor ? result.mode->floor_rule : result.mode->rule);
  }
  return result;
}

}  // namespace megamoe::route

namespace megamoe {

std::vector<QuantModeInfo> quant_modes() {
  std::vector<QuantModeInfo> modes;
  for (const route::QuantMode& mode : route::kModes) {
    modes.push_back({mode.mode, quant::rule_info(mode.rule).name, quant::rule_info(mode.floor_rule).name,
                     mode.scale_dims, mode.drop_pad, mode.permute});
  }
  return modes;
}

}  // namespace megamoe
