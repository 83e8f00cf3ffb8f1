// Instruction-set levels: which exist, which this machine can run, which is in use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megamoe/export.h"
#include "megamoe/status.h"

namespace megamoe {

/// Levels in ascending order: a level may use every kernel of the levels below it.
enum class Isa : int { kGeneric = 0, kAvx2, kAvx512, kAvx512Vnni, kAvx512Bf16, kAmx };
inline constexpr int kIsaCount = 6;

struct IsaInfo {
  Isa isa;
  const char* name;         ///< "avx512_vnni"
  const char* requirement;  ///< "AVX512F+BW+VL+DQ, VNNI"
  bool runnable;            ///< CPU and operating system both allow it
  std::string reason;       ///< why it is not runnable, or empty
};

/// Name of a level as MEGAMOE_ISA takes it, for example "avx512_vnni".
MEGAMOE_API const char* isa_name(Isa isa);
/// All levels with the verdict for this machine.
MEGAMOE_API const std::vector<IsaInfo>& isa_levels();
/// Level of a name; an error lists the known names, or says why this machine cannot run it.
MEGAMOE_API Result<Isa> isa_from_name(std::string_view name);
/// The level in use: the environment variable MEGAMOE_ISA if set, else the best runnable level for this CPU
/// model. An unknown or unsupported value of the variable is an error.
MEGAMOE_API Result<Isa> default_isa();
/// One sentence that says why default_isa() is what it is.
MEGAMOE_API std::string default_isa_reason();

}  // namespace megamoe
