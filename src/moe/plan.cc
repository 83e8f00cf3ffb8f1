// Planning: weights to scenario, scenario to kernels, shapes against the buffer's settings.
#include "moe/plan.h"

#include <algorithm>

#include "base/cpu.h"
#include "base/fp_env.h"
#include "moe/agreement.h"
#include "moe/quantities.h"
#include "pack/packed_weights.h"

namespace megamoe {
namespace moe {
namespace {

// Rough rates of one core, only to size pieces: bytes per ns from memory, operations per ns by family.
constexpr double kBytesPerNanosecond = 10;
constexpr double kOperationsPerNanosecond[kernel::kFamilyCount] = {150, 600};
// Part of the time wanted that a piece lasts at least, however many threads could share the rest: claims cost
// a small product a fifth.
constexpr double kLeastShare = 0.4;
// Times as long as wanted that pieces of early blocks last: a claim, and where a stream of weights ends and
// another begins, keep memory idle.
constexpr double kEarlyTimes = 8;

double panel_ns(const LinearPlan& linear, int64_t rows) {
  const pack::Geometry& g = linear.geometry();
  const double stream = static_cast<double>(g.stored_bytes()) / kBytesPerNanosecond;
  const double multiply = 2.0 * static_cast<double>(rows) * static_cast<double>(g.k) * kernel::kPanelColumns /
                          kOperationsPerNanosecond[static_cast<int>(g.family)];
  return std::max(stream, multiply);
}

}  // namespace

double product_ns(const LinearPlan& linear, int64_t rows) {
  return static_cast<double>(linear.geometry().panels()) * panel_ns(linear, rows);
}

int64_t panels_per_piece(const LinearPlan& linear, int64_t rows, int threads, bool early) {
  const pack::Geometry& g = linear.geometry();
  const auto lasting = [&](double ns) { return static_cast<int64_t>(ns / panel_ns(linear, rows)); };
  const auto piece_ns = static_cast<double>(linear.blocking.piece_ns);
  const int64_t fair = std::max<int64_t>({1, lasting(kLeastShare * piece_ns), g.panels() / (4 * threads)});
  // A panel that has to go alone takes longer than its half of two.
  const int64_t at_once = linear.panels_at_once(rows);
  const int64_t panels =
      early ? std::max(fair, lasting(kEarlyTimes * piece_ns)) : std::min(lasting(piece_ns) + 1, fair);
  return base::ceil_div(panels, at_once) * at_once;
}

namespace {

// What one linear layer is checked against.
struct LinearInput {
  const LinearWeights& raw;
  const std::shared_ptr<const PackedWeights>& packed;
  bool gated;
  std::string name;  ///< "weight1", "shared_weight2", ...
};

// Tensors that belong to raw weights, where there are none: nobody would read them.
Status check_no_tensors(const LinearWeights& raw, const std::string& name, const std::string& why) {
  const size_t number = name.size() - 1;
  std::string bias = name;
  bias.replace(name.find("weight"), std::string("weight").size(), "bias");
  const std::pair<const std::vector<TensorView>&, std::string> parts[] = {
      {raw.scale, name.substr(0, number) + "_scales" + name.substr(number)},
      {raw.zero, name + ".zero"},
      {raw.bias, bias},
      {raw.added_bias, name + ".added_bias"},
      {raw.up, name + ".up"}};
  for (const auto& [tensors, part] : parts) {
    if (tensors.empty()) continue;
    return Status(Code::kInvalidArgument, part + " is given: expected none " + why + " " + name);
  }
  return Status::ok();
}

// Packed weights have their order; one that is stated beside them must be it.
Status check_packed_order(const LinearInput& in) {
  const pack::GivenForm& given = in.packed->impl().given();
  const auto differs = [&in](const char* what, const std::string& stated, const std::string& packed) {
    return Status(Code::kInvalidArgument, in.name + what + " = " + stated + ": expected " + packed + " as " +
                                              in.name + " was packed");
  };
  const auto fits = [](int64_t stated, int64_t packed) { return stated == 0 || stated == packed; };
  if (!fits(in.raw.interleave, given.interleave)) {
    return differs("_interleave", std::to_string(in.raw.interleave), std::to_string(given.interleave));
  }
  if (!fits(in.raw.scale_group, given.scale_group)) {
    return differs(".scale_group", std::to_string(in.raw.scale_group), std::to_string(given.scale_group));
  }
  return in.raw.k_last && !given.k_last ? differs(".k_last", "true", "false") : Status::ok();
}

Status make_source(const LinearInput& in, const pack::ExpectedSizes& expected, LinearPlan& plan) {
  if (in.packed == nullptr) {
    Result<std::unique_ptr<pack::PanelSource>> source =
        pack::raw_source(in.raw, in.gated, in.name.c_str(), expected);
    if (!source) return source.status();
    plan.source = std::move(*source);
  } else if (!in.raw.weight.empty()) {
    return Status(Code::kInvalidArgument, in.name + " is given both raw and packed: expected one of the two");
  } else {
    MEGAMOE_RETURN_IF_ERROR(check_packed_order(in));
    MEGAMOE_RETURN_IF_ERROR(check_no_tensors(in.raw, in.name, "beside packed"));
    plan.source = pack::packed_source(in.packed);
  }
  MEGAMOE_RETURN_IF_ERROR(pack::check_sizes(plan.geometry(), in.name, expected));
  if (plan.geometry().gated == in.gated) return Status::ok();
  const std::string linear1 =
      in.gated ? "true, the activation has a gate" : "false, the activation has no gate";
  return Status(Code::kInvalidArgument,
                in.name + " was packed with gated = " + (in.gated ? "false" : "true") + ": expected " +
                    (in.name.ends_with('1') ? linear1 : "weights of a second layer"));
}

// Sources of both layers and their shapes; the scenario is chosen afterwards. `experts` < 0 takes what
// weight1 has.
Status make_sources(int64_t experts, const LinearInput& first, const LinearInput& second,
                    const BufferConfig& config, ExpertPlan& plan) {
  MEGAMOE_RETURN_IF_ERROR(
      make_source(first, {experts, config.hidden, 2 * config.intermediate_hidden}, plan.linear1));
  const pack::Geometry& g1 = plan.linear1.geometry();
  MEGAMOE_RETURN_IF_ERROR(make_source(second, {g1.experts, g1.outputs(), g1.k}, plan.linear2));
  MEGAMOE_RETURN_IF_ERROR(pack::check_pair(g1, first.name, plan.linear2.geometry(), second.name));
  plan.experts = g1.experts;
  return Status::ok();
}

void bind_kernel(const Codec& rows, kernel::Family family, Isa isa, const Blocking& blocking,
                 LinearPlan& linear) {
  linear.blocking = blocking;
  const bool e2m1 = linear.geometry().code == kernel::WeightCode::kE2M1;
  if (e2m1 && family == kernel::Family::kS8) family = kernel::e2m1_family(isa);
  const bool e4m3 = rows.is_mx() && rows.codes() == DType::kFloat8E4M3;
  const bool integers = family == kernel::Family::kS8 || (e4m3 && kernel::multiplies_e4m3_by_e2m1(isa));
  linear.source->decode_to(family, e2m1 && integers);
  const pack::Geometry& g = linear.geometry();
  linear.gemm =
      g.group() == 0 ? &kernel::gemm_for(family, isa) : &kernel::group_gemm_for(family, g.code, isa);
  if (g.code != kernel::WeightCode::kStrip) linear.decode = kernel::decoder_for(family, g.code, isa);
}

void bind_kernels(const Scenario& scenario, Isa isa, const Blocking& blocking, ExpertPlan& plan) {
  plan.scenario = &scenario;
  bind_kernel(*scenario.token_codec, scenario.family1, isa, blocking, plan.linear1);
  bind_kernel(*scenario.requantise_codec, scenario.family2, isa, blocking, plan.linear2);
}

}  // namespace
}  // namespace moe

Result<std::unique_ptr<MegaMoe::Impl>> MegaMoe::Impl::create(std::shared_ptr<SymmBuffer> buffer,
                                                             Layer layer) {
  if (buffer == nullptr) return Status(Code::kInvalidArgument, "sym_buffer is null: expected a buffer");
  SymmBuffer::Impl& owner = buffer->impl();
  if (owner.destroyed) return Status(Code::kClosed, "sym_buffer was destroyed: expected a live buffer");
  auto impl = std::make_unique<Impl>();
  impl->buffer = buffer;
  impl->layer = std::move(layer);
  impl->ops = &kernel::row_ops_for(owner.isa);
  impl->memory = base::memory_habits(base::this_cpu());
  Result<moe::ActivationPlan> activation = moe::plan_activation(impl->layer.activation);
  if (!activation) return activation.status();
  impl->activation = *activation;
  impl->mark = moe::mark_of(*activation);
  moe::Quantities quantities = moe::quantities_of(owner.config, owner.group.size());
  moe::add_layer(impl->layer, impl->activation, owner.codec->codes(), quantities);
  MEGAMOE_RETURN_IF_ERROR(moe::check_limits(owner.profile, moe::LimitStage::kLayer, quantities));
  impl->blocking = moe::choose_blocking(nullptr, {});
  MEGAMOE_RETURN_IF_ERROR(impl->plan_routed(owner));
  MEGAMOE_RETURN_IF_ERROR(impl->plan_shared(owner));
  return impl;
}

Status MegaMoe::Impl::plan_routed(const SymmBuffer::Impl& owner) {
  if (owner.local_experts == 0) return Status::ok();
  const BufferConfig& config = owner.config;
  moe::ExpertPlan& plan = experts[moe::kRouted];
  MEGAMOE_RETURN_IF_ERROR(moe::make_sources(owner.local_experts,
                                            {layer.weight1, layer.packed1, activation.gated, "weight1"},
                                            {layer.weight2, layer.packed2, false, "weight2"}, config, plan));
  Result<const moe::Scenario*> scenario =
      moe::find_scenario(config.dispatch_quant_mode, config.dispatch_quant_out_dtype,
                         plan.linear1.geometry().dtype, plan.linear1.geometry().scales);
  if (!scenario) return scenario.status();
  blocking = moe::choose_blocking(layer.tuning.get(),
                                  {owner.isa, (*scenario)->name, config.hidden, config.intermediate_hidden,
                                   config.num_experts, config.num_topk, owner.group.size(), owner.threads});
  moe::bind_kernels(**scenario, owner.isa, blocking.sizes, plan);
  return Status::ok();
}

Status MegaMoe::Impl::plan_shared(SymmBuffer::Impl& owner) {
  const bool given1 = layer.shared_packed1 != nullptr || !layer.shared_weight1.weight.empty();
  const bool given2 = layer.shared_packed2 != nullptr || !layer.shared_weight2.weight.empty();
  if (given1 != given2) {
    return Status(Code::kInvalidArgument,
                  std::string("shared_weight") + (given1 ? "2" : "1") +
                      " is missing: expected both shared_weight1 and shared_weight2, or neither");
  }
  const BufferConfig& config = owner.config;
  if (!given1) {
    MEGAMOE_RETURN_IF_ERROR(moe::check_no_tensors(layer.shared_weight1, "shared_weight1", "without"));
    return moe::check_no_tensors(layer.shared_weight2, "shared_weight2", "without");
  }
  moe::ExpertPlan& plan = experts[moe::kShared];
  MEGAMOE_RETURN_IF_ERROR(
      moe::make_sources(-1, {layer.shared_weight1, layer.shared_packed1, activation.gated, "shared_weight1"},
                        {layer.shared_weight2, layer.shared_packed2, false, "shared_weight2"}, config, plan));
  const bool typed = layer.shared_expert_quant_out_dtype != DType::kUndefined;
  Result<const moe::Scenario*> scenario =
      moe::find_shared_scenario(typed ? layer.shared_expert_quant_out_dtype : owner.codec->codes(),
                                plan.linear1.geometry().dtype, plan.linear1.geometry().scales);
  if (!scenario) return scenario.status();
  MEGAMOE_RETURN_IF_ERROR(
      moe::check_code_rows(*(*scenario)->token_codec, config.hidden, "shared_expert_quant_out_dtype"));
  moe::bind_kernels(**scenario, owner.isa, blocking.sizes, plan);
  const moe::CallGuard guard(owner.busy);
  if (!guard.taken()) {
    return Status(Code::kInvalidArgument,
                  "sym_buffer is in a call: expected to plan shared experts between calls");
  }
  return owner.reserve_shared(plan.experts);
}

MegaMoe::MegaMoe(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MegaMoe::~MegaMoe() = default;

Result<std::unique_ptr<MegaMoe>> MegaMoe::create(std::shared_ptr<SymmBuffer> buffer, Layer layer) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(std::move(buffer), std::move(layer));
  if (!impl) return impl.status();
  return std::unique_ptr<MegaMoe>(new MegaMoe(std::move(*impl)));
}

Status MegaMoe::run(const CallArgs& args) {
  const base::DefaultFpEnv fp_env;
  return impl_->run(args);
}

Result<Stages> MegaMoe::stages() const {
  return impl_->stages();
}

std::vector<std::pair<std::string, std::string>> MegaMoe::description() const {
  return impl_->description();
}

std::vector<std::string> MegaMoe::kernels() const {
  std::vector<std::string> names;
  for (const moe::ExpertPlan& plan : impl_->experts) {
    if (plan.scenario == nullptr) continue;
    names.insert(names.end(), {plan.linear1.gemm->name, plan.linear2.gemm->name});
  }
  return names;
}

std::string MegaMoe::describe() const {
  std::string text;
  for (const auto& [key, value] : impl_->description()) text += key + ": " + value + "\n";
  return text;
}

}  // namespace megamoe
