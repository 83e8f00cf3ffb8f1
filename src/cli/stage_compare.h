// Compares two results stage by stage and names the first stage that differs.
#pragma once

#include <array>
#include <cstdint>

#include "megamoe/reference.h"
#include "moe/scenarios.h"

namespace megamoe::cli {

/// Stages in the order data passes through them, then the outputs.
inline constexpr const char* kStageNames[] = {
    "row order",         "token codes",       "token scales", "Linear1",           "activation",
    "requantised codes", "requantise scales", "Linear2",      "expert_token_nums", "y"};
inline constexpr int kStageCount = 10;

/// How one stage of one rank compares. Plain data: ranks report it through shared memory.
struct StageDifference {
  int32_t compared;  ///< 0: the stage leaves nothing behind to compare
  int32_t differs;   ///< 1: past what the stage allows
  int64_t elements;
  int64_t differing;  ///< elements that are not equal
  int64_t first;      ///< index of the first of them, -1 without one
  double relative;    ///< |got - want|_F / |want|_F
};
using StageDifferences = std::array<StageDifference, kStageCount>;

/// Compares everything but the outputs. Data that is only moved or quantised must be equal; what depends on
/// the order of float sums may differ by `bound`.
void compare_stages(const reference::Stages& got, const reference::Stages& want, double bound,
                    StageDifferences& out);

/// Compares the outputs of a rank.
void compare_outputs(const uint16_t* y, const uint16_t* want_y, int64_t count, const int32_t* nums,
                     const int32_t* want_nums, int64_t experts, double bound, StageDifferences& out);

/// The first stage that differs, or -1.
int first_differing_stage(const StageDifferences& stages);

}  // namespace megamoe::cli
