// Compares two results stage by stage and names the first stage that differs.
#pragma once

#include <array>
#include <cstdint>

#include "cli/stage_table.h"
#include "megamoe/reference.h"

namespace megamoe::cli {

/// The stages of stage_table(), then the outputs of a call.
inline constexpr int kStageCount = 19;
inline constexpr int kCountsStage = kStageCount - 2, kOutputStage = kStageCount - 1;
const char* stage_name(int stage);

/// How one stage of one rank compares. Plain data: ranks report it through shared memory.
struct StageDifference {
  int32_t compared;  ///< 0: the stage leaves nothing behind to compare
  int32_t differs;   ///< 1: past what the stage allows
  int64_t elements;
  int64_t columns;    ///< elements of a row
  int64_t differing;  ///< elements that are not equal
  int64_t first;      ///< index of the first of them, -1 without one
  double relative;    ///< |got - want|_F / |want|_F
};
using StageDifferences = std::array<StageDifference, kStageCount>;

/// Compares everything but the outputs. Data that is only moved or quantised must be equal; what depends on
/// the order of float sums may differ by `bound`.
void compare_stages(const Stages& got, const Stages& want, double bound, StageDifferences& out);

/// Compares the outputs of a rank: y (tokens, hidden) and the counts of its experts.
void compare_outputs(const uint16_t* y, const uint16_t* want_y, int64_t tokens, int64_t hidden,
                     const int32_t* nums, const int32_t* want_nums, int64_t experts, double bound,
                     StageDifferences& out);

/// The first stage that differs, or -1.
int first_differing_stage(const StageDifferences& stages);

}  // namespace megamoe::cli
