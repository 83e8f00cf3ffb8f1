// What a tuning file holds, and how it is found and written.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megamoe/isa.h"
#include "megamoe/tuning.h"
#include "moe/blocking.h"

namespace megamoe {

namespace moe {

/// What block sizes were measured for.
struct TuningKey {
  Isa isa = Isa::kGeneric;
  std::string scenario;
  int64_t hidden = 0, intermediate = 0, experts = 0, topk = 0;
  int64_t ranks = 0, threads = 0;  ///< threads of each rank
  bool operator==(const TuningKey&) const = default;
};

struct TuningEntry {
  TuningKey key;
  std::vector<std::pair<const BlockSize*, int64_t>> sizes;  ///< those that differ from the defaults
};

/// The text of a file for this machine.
std::string tuning_text(const std::vector<TuningEntry>& entries);

/// The block sizes of a layer: those of its entry over the defaults of this machine.
struct ChosenBlocking {
  Blocking sizes;
  std::string source;  ///< "defaults", "tuning FILE", "defaults: FILE has no such layer"
};
ChosenBlocking choose_blocking(const Tuning* tuning, const TuningKey& key);

}  // namespace moe

class Tuning::Impl {
 public:
  std::string name;
  std::vector<moe::TuningEntry> entries;
  const moe::TuningEntry* find(const moe::TuningKey& key) const;
};

}  // namespace megamoe
