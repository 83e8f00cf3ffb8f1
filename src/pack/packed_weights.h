// The memory behind PackedWeights.
#pragma once

#include <memory>

#include "base/memory.h"
#include "pack/given_form.h"
#include "pack/panel_source.h"

namespace megamoe {

/// One allocation: panels [expert][panel], then with the s8 family column sums [expert][panel][32], then with
/// channel scales the scales and with biases the biases of both kinds, [expert][panel][32] each.
class PackedWeights::Impl {
 public:
  static Result<std::unique_ptr<Impl>> pack(const LinearWeights& weights, bool gated, const char* name,
                                            int threads);

  const pack::Geometry& geometry() const { return geometry_; }
  const pack::GivenForm& given() const { return given_; }
  size_t bytes() const { return memory_.bytes(); }
  pack::Panel panel(int64_t expert, int64_t index) const {
    const int64_t i = expert * geometry_.panels() + index;
    const auto row = [&](auto* rows) { return rows == nullptr ? nullptr : rows + i * kernel::kPanelColumns; };
    const bool shift = geometry_.bias_is_shift();
    return {memory_.data() + i * panel_bytes_, row(sums_), row(scales_), shift ? row(bias_) : nullptr,
            shift ? row(added_bias_) : row(bias_)};
  }

 private:
  pack::Geometry geometry_;
  pack::GivenForm given_;
  int64_t panel_bytes_ = 0;
  base::Pages memory_;
  int32_t* sums_ = nullptr;
  float* scales_ = nullptr;
  float* bias_ = nullptr;
  float* added_bias_ = nullptr;
};

}  // namespace megamoe
