// Activations, what calls state and numbers of tokens of all ranks of a call.
#include "moe/agreement.h"

#include <bit>
#include <cstdio>
#include <string>
#include <tuple>

#include "activation/params.h"
#include "comm/settings.h"

namespace megamoe::moe {
namespace {

/// Where the words lie; an int64_t has two, the low one first.
enum MarkWord {
  kKind,
  kClamp,
  kAlpha,
  kBeta,
  kLinearBeta,
  kGlobalBs,
  kCclBufferSize = kGlobalBs + 2,
  kWords = kCclBufferSize + 2
};
static_assert(kWords <= std::tuple_size_v<comm::LayerMark>);

/// What a call states and all ranks must state alike.
struct Attribute {
  const char* name;
  MarkWord word;
  int64_t CallArgs::*value;
};
constexpr Attribute kAttributes[] = {{"global_bs", kGlobalBs, &CallArgs::global_bs},
                                     {"ccl_buffer_size", kCclBufferSize, &CallArgs::ccl_buffer_size}};

/// "swiglu", "swigluoai (clamp 7, alpha 1.702, beta 1)".
std::string mark_text(const comm::LayerMark& mark) {
  constexpr struct {
    MarkWord word;
    const char* name;
    float unused;  ///< value that does nothing
  } kParameters[] = {{kClamp, "clamp", activation::kFloatMax},
                     {kAlpha, "alpha", activation::ActivationParams().alpha},
                     {kBeta, "beta", activation::ActivationParams().beta},
                     {kLinearBeta, "linear_beta", activation::ActivationParams().linear_beta}};
  std::string parameters;
  for (const auto& parameter : kParameters) {
    const auto value = std::bit_cast<float>(mark[parameter.word]);
    if (value == parameter.unused) continue;
    char number[32];
    std::snprintf(number, sizeof number, "%.9g", static_cast<double>(value));
    parameters += (parameters.empty() ? "" : ", ") + std::string(parameter.name) + " " + number;
  }
  return activation::kActivations[mark[kKind]].name + (parameters.empty() ? "" : " (" + parameters + ")");
}

std::string attribute_text(const comm::LayerMark& mark, MarkWord word) {
  return std::to_string(static_cast<int64_t>(uint64_t{mark[word + 1]} << 32 | mark[word]));
}

/// One value of the marks of all ranks, as text; equal texts are equal values.
template <class TextOf>
Status agree_on(const comm::CallMatrix& matrix, const char* name, const TextOf& text_of) {
  std::string text;
  std::vector<bool> told(static_cast<size_t>(matrix.ranks()));
  for (int64_t r = 0; r < matrix.ranks(); ++r) {
    if (told[static_cast<size_t>(r)]) continue;
    const std::string own = text_of(matrix.layer(r));
    std::vector<int> ranks;
    for (int64_t other = r; other < matrix.ranks(); ++other) {
      if (text_of(matrix.layer(other)) != own) continue;
      told[static_cast<size_t>(other)] = true;
      ranks.push_back(static_cast<int>(other));
    }
    if (r == 0 && static_cast<int64_t>(ranks.size()) == matrix.ranks()) return Status::ok();
    text += (text.empty() ? "" : "; ") + own + " on " + comm::rank_list(ranks);
  }
  return Status(Code::kSettingsDiffer,
                std::string(name) + " = " + text + ": expected the same value on every rank");
}

Status agree_on_marks(const comm::CallMatrix& matrix) {
  bool same = true;
  for (int64_t r = 1; r < matrix.ranks(); ++r) same &= matrix.layer(r) == matrix.layer(0);
  if (same) return Status::ok();
  MEGAMOE_RETURN_IF_ERROR(agree_on(matrix, "activation", mark_text));
  for (const Attribute& attribute : kAttributes) {
    MEGAMOE_RETURN_IF_ERROR(agree_on(matrix, attribute.name, [&](const comm::LayerMark& mark) {
      return attribute_text(mark, attribute.word);
    }));
  }
  return Status::ok();
}

Status agree_on_tokens(const comm::CallMatrix& matrix, Profile profile) {
  if (allows(profile, Parameter::kUnequalTokens)) return Status::ok();
  for (int64_t r = 1; r < matrix.ranks(); ++r) {
    if (matrix.tokens(r) == matrix.tokens(0)) continue;
    return Status(Code::kInvalidArgument, "rank " + std::to_string(r) + ": x has " +
                                              std::to_string(matrix.tokens(r)) + " tokens: expected " +
                                              std::to_string(matrix.tokens(0)) + " as on rank 0 (profile " +
                                              profile_info(profile).name + ")");
  }
  return Status::ok();
}

}  // namespace

comm::LayerMark mark_of(const ActivationPlan& activation) {
  comm::LayerMark mark{};
  mark[kKind] = static_cast<uint32_t>(activation.kind);
  mark[kClamp] = std::bit_cast<uint32_t>(activation.params.clamp);
  mark[kAlpha] = std::bit_cast<uint32_t>(activation.params.alpha);
  mark[kBeta] = std::bit_cast<uint32_t>(activation.params.beta);
  mark[kLinearBeta] = std::bit_cast<uint32_t>(activation.params.linear_beta);
  return mark;
}

comm::LayerMark with_call(comm::LayerMark mark, const CallArgs& args) {
  for (const Attribute& attribute : kAttributes) {
    const auto value = static_cast<uint64_t>(args.*attribute.value);
    mark[attribute.word] = static_cast<uint32_t>(value);
    mark[attribute.word + 1] = static_cast<uint32_t>(value >> 32);
  }
  return mark;
}

Status agree_on_call(const comm::CallMatrix& matrix, Profile profile) {
  MEGAMOE_RETURN_IF_ERROR(agree_on_marks(matrix));
  return agree_on_tokens(matrix, profile);
}

}  // namespace megamoe::moe
