// A plan as text.
#include <string>

#include "moe/plan.h"

namespace megamoe {
namespace {

std::string linear_text(const moe::LinearPlan& linear) {
  const pack::Geometry& g = linear.geometry();
  return "K " + std::to_string(g.k) + " x N " + std::to_string(g.n) + ", " + std::to_string(g.panels()) +
         " panels of " + std::to_string(g.stored_bytes()) + " bytes per expert" +
         (g.k % kernel::k_per_dword(g.family) != 0 || g.outputs() % g.outputs_per_panel() != 0 ? ", with tail"
                                                                                               : "");
}

}  // namespace

std::string moe::LinearPlan::kernel_text(int64_t rows) const {
  const std::string name = gemm->name;
  if (geometry().code == kernel::WeightCode::kStrip) return name;
  if (keeps(rows)) {
    const bool codes = geometry().family == kernel::Family::kS8;
    return name + " on codes, " + (codes ? "decoded once" : "scales read once") + " for all rows";
  }
  if (reads_codes(rows))
    return name + (panels_at_once(rows) > 1 ? " on codes, two panels at once" : " on codes");
  return name + (decode != nullptr ? " on strips of decoded codes" : " on decoded panels");
}

std::vector<std::pair<std::string, std::string>> MegaMoe::Impl::description() const {
  const SymmBuffer::Impl& owner = buffer->impl();
  const BufferConfig& config = owner.config;
  std::vector<std::pair<std::string, std::string>> lines = {
      {"scenario", routed().scenario == nullptr ? "none: this rank owns no expert" : routed().scenario->name},
      {"isa", isa_name(owner.isa)},
      {"transport", owner.group.transport()},
      {"rank", std::to_string(owner.group.rank()) + " of " + std::to_string(owner.group.size())},
      {"threads", std::to_string(owner.threads)},
      {"experts",
       std::to_string(config.num_experts) + ", " + std::to_string(owner.local_experts) + " on this rank"},
      {"top-k", std::to_string(config.num_topk)},
      {"token codec", owner.codec->name},
  };
  if (owner.combine_codec != nullptr) lines.emplace_back("combine codec", owner.combine_codec->name);
  const auto add_kernels = [&](const moe::LinearPlan& linear, const std::string& name) {
    for (int64_t first = 1, last = 1; first <= moe::kBlockRows; first = last + 1) {
      const std::string kernel = linear.kernel_text(first);
      for (last = first; last < moe::kBlockRows && linear.kernel_text(last + 1) == kernel;) ++last;
      lines.emplace_back(name + " rows " + std::to_string(first) + " to " + std::to_string(last), kernel);
    }
  };
  const auto add_experts = [&](const moe::ExpertPlan& plan, const std::string& prefix, bool packed) {
    if (plan.scenario == nullptr) return;
    lines.insert(lines.end(),
                 {
                     {prefix + "Linear1 kernel", plan.linear1.gemm->name},
                     {prefix + "Linear1", linear_text(plan.linear1)},
                     {prefix + "activation", layer.activation.name},
                     {prefix + "requantise codec", plan.scenario->requantise_codec->name},
                     {prefix + "Linear2 kernel", plan.linear2.gemm->name},
                     {prefix + "Linear2", linear_text(plan.linear2)},
                     {prefix + "weights", packed ? "packed" : "raw, packed panel by panel in every call"},
                 });
    add_kernels(plan.linear1, prefix + "Linear1");
    add_kernels(plan.linear2, prefix + "Linear2");
  };
  add_experts(routed(), "", layer.packed1 != nullptr);
  if (shared().scenario != nullptr) {
    lines.emplace_back("shared experts", std::to_string(shared().experts) + ", " + shared().scenario->name);
    add_experts(shared(), "shared ", layer.shared_packed1 != nullptr);
  }
  lines.insert(lines.end(), {
                                {"row operations", ops->name},
                                {"block rows", std::to_string(moe::kBlockRows)},
                                {"block sizes", moe::blocking_text(blocking.sizes)},
                                {"block sizes from", blocking.source},
                                {"capacity rows", std::to_string(owner.capacity)},
                                {"symmetric memory bytes", std::to_string(owner.layout.total)},
                                {"workspace bytes (upper bound)",
                                 std::to_string(owner.workspace.bytes() + owner.shared.workspace.bytes() +
                                                owner.scratch_pages.bytes())},
                            });
  return lines;
}

}  // namespace megamoe
