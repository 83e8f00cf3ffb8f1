// Test cases of the formats: casts, quantisers, their inverses and layouts.
#include "cli/case_quant.h"

#include "kernel/registry.h"

namespace megamoe::cli {

Result<CaseOutputs> run_int8_per_token(const Case& test, const CommonOptions& common) {
  auto isa = chosen_isa(common);
  if (!isa) return isa.status();
  const kernel::RowOps& ops = kernel::row_ops_for(*isa);
  const CaseTensor* x = test.input("x");
  if (x == nullptr || x->shape.size() != 2) {
    return Status(Code::kDataLoss, "x is missing: expected a tensor of 2 dimensions");
  }
  if (x->dtype != DType::kBFloat16 && x->dtype != DType::kFloat32) {
    return Status(Code::kInvalidType,
                  std::string("x has type ") + dtype_name(x->dtype) + ": expected bfloat16 or float32");
  }
  const int64_t rows = x->shape[0], n = x->shape[1];
  std::vector<std::byte> codes(static_cast<size_t>(rows * n)),
      scales(static_cast<size_t>(rows) * sizeof(float));
  const int64_t row_bytes = n * dtype_bits(x->dtype) / 8;
  for (int64_t r = 0; r < rows; ++r) {
    ops.quantise[static_cast<int>(kernel::QuantRule::kInt8PerToken)](
        {x->bytes.data() + r * row_bytes, x->dtype, n, nullptr, 0, 0, codes.data() + r * n,
         scales.data() + static_cast<size_t>(r) * sizeof(float)});
  }
  CaseOutputs outputs;
  for (const CaseTensor& tensor : test.expected) outputs.push_back(tensor.arg == "scale" ? scales : codes);
  return outputs;
}

}  // namespace megamoe::cli
