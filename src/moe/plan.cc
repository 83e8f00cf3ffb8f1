// Planning: weights to scenario, scenario to kernels, shapes against the buffer's settings.
#include "moe/plan.h"

#include <algorithm>

namespace megamoe {
namespace moe {
namespace {

// One piece of work should last about this long: the claim then costs below a percent.
constexpr double kPieceNanoseconds = 20'000;
// Rough rates of one core, only to size pieces: bytes per ns from memory, operations per ns by family.
constexpr double kBytesPerNanosecond = 10;
constexpr double kOperationsPerNanosecond[kernel::kFamilyCount] = {150, 600};

}  // namespace

int64_t panels_per_piece(const LinearPlan& linear, int64_t rows, int threads) {
  const pack::Geometry& g = linear.geometry();
  const double stream = static_cast<double>(kernel::panel_bytes(g.family, g.k)) / kBytesPerNanosecond;
  const double multiply = 2.0 * static_cast<double>(rows) * static_cast<double>(g.k) * kernel::kPanelColumns /
                          kOperationsPerNanosecond[static_cast<int>(g.family)];
  const auto wanted = static_cast<int64_t>(kPieceNanoseconds / std::max(stream, multiply)) + 1;
  const int64_t fair = std::max<int64_t>(1, g.panels() / (4 * threads));
  return std::min(wanted, fair);
}

namespace {

Result<std::unique_ptr<pack::PanelSource>> make_source(const LinearWeights& raw,
                                                       const std::shared_ptr<const PackedWeights>& packed,
                                                       bool gated, const char* name) {
  if (packed == nullptr) return pack::raw_source(raw, gated, name);
  if (!raw.weight.empty()) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + " is given both raw and packed: expected one of the two");
  }
  return pack::packed_source(packed);
}

Status expect_size(const char* name, const char* what, int64_t got, int64_t expected) {
  if (got == expected) return Status::ok();
  return Status(Code::kInvalidArgument, std::string(name) + " has " + what + " " + std::to_string(got) +
                                            ": expected " + std::to_string(expected));
}

}  // namespace
}  // namespace moe

Result<std::unique_ptr<MegaMoe::Impl>> MegaMoe::Impl::create(std::shared_ptr<SymmBuffer> buffer,
                                                             Layer layer) {
  if (buffer == nullptr) return Status(Code::kInvalidArgument, "sym_buffer is null: expected a buffer");
  const SymmBuffer::Impl& owner = buffer->impl();
  if (owner.destroyed) return Status(Code::kClosed, "sym_buffer was destroyed: expected a live buffer");
  auto impl = std::make_unique<Impl>();
  impl->buffer = buffer;
  impl->layer = std::move(layer);
  MEGAMOE_RETURN_IF_ERROR(impl->check_layer(owner));
  return impl;
}

Status MegaMoe::Impl::check_layer(const SymmBuffer::Impl& owner) {
  Result<moe::ActivationPlan> planned = moe::plan_activation(layer.activation);
  if (!planned) return planned.status();
  activation = *planned;

  if (layer.shared_packed1 != nullptr || layer.shared_packed2 != nullptr ||
      !layer.shared_weight1.weight.empty() || !layer.shared_weight2.weight.empty()) {
    return Status(Code::kUnsupported,
                  "shared_weight1 / shared_weight2 is given: expected none in this scenario");
  }
  const BufferConfig& config = owner.config;
  const bool owns_experts = owner.local_experts > 0;
  if (owns_experts) {
    Result<std::unique_ptr<pack::PanelSource>> source1 =
        moe::make_source(layer.weight1, layer.packed1, activation.gated, "weight1");
    if (!source1) return source1.status();
    linear1.source = std::move(*source1);
    Result<std::unique_ptr<pack::PanelSource>> source2 =
        moe::make_source(layer.weight2, layer.packed2, /*gated=*/false, "weight2");
    if (!source2) return source2.status();
    linear2.source = std::move(*source2);

    const pack::Geometry& g1 = linear1.geometry();
    const pack::Geometry& g2 = linear2.geometry();
    if (g1.gated != activation.gated) {
      return Status(Code::kInvalidArgument,
                    std::string("weight1 was packed for ") +
                        (g1.gated ? "a gated activation" : "an activation without gate") +
                        ": expected the form that activation " + layer.activation.name + " needs");
    }
    MEGAMOE_RETURN_IF_ERROR(moe::expect_size("weight1", "experts", g1.experts, owner.local_experts));
    MEGAMOE_RETURN_IF_ERROR(moe::expect_size("weight1", "reduction size", g1.k, config.hidden));
    MEGAMOE_RETURN_IF_ERROR(moe::expect_size("weight1", "output size", g1.n, 2 * config.intermediate_hidden));
    MEGAMOE_RETURN_IF_ERROR(moe::expect_size("weight2", "experts", g2.experts, owner.local_experts));
    MEGAMOE_RETURN_IF_ERROR(moe::expect_size("weight2", "reduction size", g2.k, g1.outputs()));
    MEGAMOE_RETURN_IF_ERROR(moe::expect_size("weight2", "output size", g2.n, config.hidden));
    Result<const moe::Scenario*> found =
        moe::find_scenario(config.dispatch_quant_mode, config.dispatch_quant_out_dtype, g1.dtype);
    if (!found) return found.status();
    scenario = *found;
    if (g2.dtype != g1.dtype) {
      return Status(Code::kInvalidType, std::string("weight2 has type ") + dtype_name(g2.dtype) +
                                            ": expected " + dtype_name(g1.dtype) + " as weight1");
    }
    linear1.gemm = &kernel::gemm_for(scenario->family1, owner.isa);
    linear2.gemm = &kernel::gemm_for(scenario->family2, owner.isa);
  }
  ops = &kernel::row_ops_for(owner.isa);
  return Status::ok();
}

MegaMoe::MegaMoe(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MegaMoe::~MegaMoe() = default;

Result<std::unique_ptr<MegaMoe>> MegaMoe::create(std::shared_ptr<SymmBuffer> buffer, Layer layer) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(std::move(buffer), std::move(layer));
  if (!impl) return impl.status();
  return std::unique_ptr<MegaMoe>(new MegaMoe(std::move(*impl)));
}

Status MegaMoe::run(const CallArgs& args) {
  return impl_->run(args);
}

Result<Stages> MegaMoe::stages() const {
  return impl_->stages();
}

std::vector<std::pair<std::string, std::string>> MegaMoe::description() const {
  return impl_->description();
}

std::string MegaMoe::describe() const {
  std::string text;
  for (const auto& [key, value] : impl_->description()) text += key + ": " + value + "\n";
  return text;
}

}  // namespace megamoe
