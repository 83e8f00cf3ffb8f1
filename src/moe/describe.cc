// A plan as text.
#include <string>

#include "moe/plan.h"

namespace megamoe {
namespace {

std::string linear_text(const moe::LinearPlan& linear) {
  const pack::Geometry& g = linear.geometry();
  return "K " + std::to_string(g.k) + " x N " + std::to_string(g.n) + ", " + std::to_string(g.panels()) +
         " panels of " + std::to_string(kernel::panel_bytes(g.family, g.k)) + " bytes per expert" +
         (g.k % kernel::k_per_dword(g.family) != 0 || g.outputs() % g.outputs_per_panel() != 0 ? ", with tail"
                                                                                               : "");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> MegaMoe::Impl::description() const {
  const SymmBuffer::Impl& owner = buffer->impl();
  const BufferConfig& config = owner.config;
  std::vector<std::pair<std::string, std::string>> lines = {
      {"scenario", scenario == nullptr ? "none: this rank owns no expert" : scenario->name},
      {"isa", isa_name(owner.isa)},
      {"transport", owner.group.transport()},
      {"rank", std::to_string(owner.group.rank()) + " of " + std::to_string(owner.group.size())},
      {"threads", std::to_string(owner.threads)},
      {"experts",
       std::to_string(config.num_experts) + ", " + std::to_string(owner.local_experts) + " on this rank"},
      {"top-k", std::to_string(config.num_topk)},
      {"token codec", owner.codec->name},
  };
  if (scenario != nullptr) {
    lines.insert(
        lines.end(),
        {
            {"Linear1 kernel", linear1.gemm->name},
            {"Linear1", linear_text(linear1)},
            {"activation", layer.activation.name},
            {"requantise codec", scenario->requantise_codec->name},
            {"Linear2 kernel", linear2.gemm->name},
            {"Linear2", linear_text(linear2)},
            {"row operations", ops->name},
            {"weights", layer.packed1 != nullptr ? "packed" : "raw, packed panel by panel in every call"},
        });
  }
  lines.insert(lines.end(),
               {
                   {"block rows", std::to_string(moe::kBlockRows)},
                   {"capacity rows", std::to_string(owner.capacity)},
                   {"symmetric memory bytes", std::to_string(owner.layout.total)},
                   {"workspace bytes (upper bound)",
                    std::to_string(owner.workspace.packed1.bytes() + owner.workspace.packed2.bytes() +
                                   owner.workspace.activated.bytes() + owner.workspace.codes.bytes() +
                                   owner.workspace.scales.bytes() + owner.scratch_pages.bytes())},
               });
  return lines;
}

}  // namespace megamoe
