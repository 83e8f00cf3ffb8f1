// Which quantisation rule each quant_mode of the routing operators is.
#pragma once

#include <cstdint>
#include <string>

#include "megamoe/status.h"
#include "quant/rules.h"

namespace megamoe::route {

/// Which smooth scales a mode takes: none, one row, one row or one per expert.
enum class Smooth { kNone, kRow, kRowOrExperts };

struct QuantMode {
  int64_t mode;
  quant::QuantRule rule;
  quant::QuantRule floor_rule;  ///< rule with mx_scale "floor"; the same where there is only one
  int scale_dims;               ///< dimensions of expanded_scale; with 3 its columns come in pairs
  Smooth smooth;
  bool drop_pad;  ///< allowed with drop_pad_mode 1
  bool permute;   ///< allowed in moe_token_permute
};

/// Where a quant_mode was given.
enum class ModeUse { kDropless, kDropPad, kPermute };

/// What to do with a row: copy it (both null), or quantise it.
struct RowMode {
  const QuantMode* mode = nullptr;
  const quant::RuleInfo* rule = nullptr;
};

/// The meaning of quant_mode and mx_scale; an error that names the wrong one of them.
Result<RowMode> row_mode(int64_t quant_mode, const std::string& mx_scale, ModeUse use);

}  // namespace megamoe::route
