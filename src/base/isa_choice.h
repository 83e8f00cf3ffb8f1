// Which level a given CPU can run and which one it gets: the rules behind megamoe/isa.h, free of the machine
// they run on so that tests can ask about other machines.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/cpu.h"
#include "megamoe/isa.h"

namespace megamoe::base {

struct IsaChoice {
  Isa isa;
  std::string reason;        ///< one sentence
  std::optional<Isa> rival;  ///< a lower level that may be faster: the table does not know, a measurement may
};

/// What `cpu` lacks for `isa`, for example "AVX512_VNNI, AVX512_BF16"; empty if it can run it.
std::string missing_for(Isa isa, const Cpu& cpu);
/// The level this CPU model gets when nobody asks for one.
IsaChoice choose_isa(const Cpu& cpu);
/// The level of a name that the argument or variable `who` gives; an error for one that does not exist or
/// that this machine cannot run.
Result<Isa> isa_of_name(const char* who, std::string_view name);

}  // namespace megamoe::base
