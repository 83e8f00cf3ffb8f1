// The quantisation rules on whole tensors: checks of every argument, then row by row.
#include "megamoe/quantise.h"

#include <cstring>
#include <new>

#include "base/fp_env.h"
#include "format/check.h"
#include "format/packed.h"
#include "kernel/default_isa.h"
#include "kernel/registry.h"

namespace megamoe {
namespace {

using quant::RuleInfo;

Status invalid(const std::string& text) {
  return Status(Code::kInvalidArgument, text);
}

Result<const RuleInfo*> rule_of(std::string_view name) {
  if (const RuleInfo* info = quant::find_rule(name)) return info;
  return invalid("rule = \"" + std::string(name) + "\": expected one of " + quant::rule_names());
}

std::vector<DType> input_types(const RuleInfo& info) {
  std::vector<DType> types;
  for (DType type : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    if (info.accepts(type)) types.push_back(type);
  }
  return types;
}

Status check_rows(const TensorView& t, const char* name) {
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(t, name));
  return t.dims == 2 ? Status::ok() : format::wrong_shape(t, name, "two dimensions");
}

/// The last dimension with gaps between its elements, the first not counted; 0 if rows have none.
int dimension_with_gaps(const TensorView& t) {
  int64_t step = 1;
  for (int i = t.dims - 1; i > 0; --i) {
    if (t.shape[i] > 1 && t.strides[i] != step) return i;
    step *= t.shape[i];
  }
  return 0;
}

Status check_dense_rows(const TensorView& t, const char* name) {
  const int i = dimension_with_gaps(t);
  if (i == 0) return Status::ok();
  return invalid(std::string(name) + " has stride " + std::to_string(t.strides[i]) + " in dimension " +
                 std::to_string(i) + ": expected rows without gaps");
}

Status check_codes(const RuleInfo& info, const TensorView& codes) {
  MEGAMOE_RETURN_IF_ERROR(format::check_type(codes, "codes", {info.codes}));
  MEGAMOE_RETURN_IF_ERROR(check_rows(codes, "codes"));
  if (info.even_columns() && codes.shape[1] % 2 != 0) {
    return format::wrong_shape(codes, "codes", "an even number of columns with " + std::string(info.name));
  }
  if (dtype_bits(codes.dtype) == 4 && codes.shape[0] > 1 && codes.strides[0] % 2 != 0) {
    return invalid("codes has row stride " + std::to_string(codes.strides[0]) +
                   ": expected an even one for " + dtype_name(codes.dtype));
  }
  return Status::ok();
}

/// Scales per row that `scales` has, padding included.
Result<int64_t> check_scales(const RuleInfo& info, const TensorView& scales, int64_t rows, int64_t columns) {
  if (!info.has_scales()) {
    if (!scales.present()) return int64_t{0};
    return invalid("scales has type " + std::string(dtype_name(scales.dtype)) + ": expected none with " +
                   info.name);
  }
  MEGAMOE_RETURN_IF_ERROR(format::check_type(scales, "scales", {info.scales}));
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(scales, "scales"));
  const int64_t groups = info.groups(columns), padded = info.scale_columns(columns);
  const std::string t = std::to_string(rows);
  std::string expected = "(" + t + ", " + std::to_string(groups) + ")";
  if (padded != groups) expected += ", (" + t + ", " + std::to_string(padded) + ")";
  if (info.scale_multiple == 2) expected += " or (" + t + ", " + std::to_string(padded / 2) + ", 2)";
  if (info.group == 0) expected += " or (" + t + ",)";
  const auto* shape = scales.shape;
  const bool flat = scales.dims == 2 && (shape[1] == groups || shape[1] == padded);
  const bool pairs = info.scale_multiple == 2 && scales.dims == 3 && shape[1] == padded / 2 && shape[2] == 2;
  const bool single = info.group == 0 && scales.dims == 1;
  if ((!flat && !pairs && !single) || shape[0] != rows)
    return format::wrong_shape(scales, "scales", expected);
  return flat ? shape[1] : single ? 1 : padded;
}

Status check_arguments(const RuleInfo& info, const QuantArguments& a, bool smoothing, int64_t columns) {
  auto required = [&](RuleInfo::Argument argument, const std::optional<float>& value, const char* name) {
    if (info.takes(argument) == value.has_value()) return Status::ok();
    return invalid(std::string(name) + (value ? " is given" : " is missing") + ": expected " +
                   (value ? "none" : "one") + " with " + info.name);
  };
  MEGAMOE_RETURN_IF_ERROR(required(RuleInfo::kScale, a.scale, "scale"));
  MEGAMOE_RETURN_IF_ERROR(required(RuleInfo::kOffset, a.offset, "offset"));
  if (!a.smooth.present()) return Status::ok();
  if (!smoothing || !info.takes(RuleInfo::kSmooth)) {
    return invalid("smooth is given: expected none with " + std::string(info.name));
  }
  MEGAMOE_RETURN_IF_ERROR(format::check_type(a.smooth, "smooth", {DType::kFloat32}));
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(a.smooth, "smooth"));
  const bool row = a.smooth.dims == 1 || (a.smooth.dims == 2 && a.smooth.shape[0] == 1);
  if (row && a.smooth.shape[a.smooth.dims - 1] == columns) return Status::ok();
  const std::string n = std::to_string(columns);
  return format::wrong_shape(a.smooth, "smooth", "(" + n + ",) or (1, " + n + ")");
}

Result<const kernel::RowOps*> row_ops(const QuantArguments& arguments) {
  Result<Isa> isa = kernel::isa_of_call(arguments.isa);
  if (!isa) return isa.status();
  return &kernel::row_ops_for(*isa);
}

/// Address of row t in units of whole bytes.
template <class Pointer>
Pointer row_at(Pointer data, DType dtype, int64_t stride, int64_t t) {
  return data + t * stride * dtype_bits(dtype) / 8;
}

/// Rows of a tensor one after another, copied where their elements do not lie side by side.
class Rows {
 public:
  Rows(const TensorView& tensor, int64_t count)
      : tensor_(tensor),
        bits_(dtype_bits(tensor.dtype)),
        count_(count),
        copy_(dimension_with_gaps(tensor) != 0 ? static_cast<size_t>(count * bits_ / 8) : 0) {}

  /// Whether a row lies in the tensor itself.
  bool in_place() const { return copy_.empty(); }
  const std::byte* at(int64_t t) {
    const auto* const row =
        row_at(static_cast<const std::byte*>(tensor_.data), tensor_.dtype, tensor_.strides[0], t);
    if (in_place()) return row;
    const int64_t inner = tensor_.dims == 3 ? tensor_.shape[2] : 1;
    for (int64_t i = 0; i < count_; ++i) {
      const int64_t from = i / inner * tensor_.strides[1] + i % inner * tensor_.strides[2];
      format::write_code(copy_.data(), bits_, i, format::read_code(row, bits_, from));
    }
    return copy_.data();
  }

 private:
  const TensorView& tensor_;
  int bits_;
  int64_t count_;  ///< elements of a row
  std::vector<std::byte> copy_;
};

Status quantise_rows(const RuleInfo& info, const TensorView& x, const TensorRef& codes,
                     const TensorRef& scales, int64_t given_scales, const QuantArguments& arguments,
                     const kernel::RowOps& ops) {
  const int64_t rows = x.shape[0], columns = x.shape[1];
  Rows source(x, columns);
  std::vector<float> smooth;
  if (arguments.smooth.present()) {
    const TensorView& s = arguments.smooth;
    for (int64_t i = 0; i < columns; ++i)
      smooth.push_back(static_cast<const float*>(s.data)[i * s.strides[s.dims - 1]]);
  }
  const int64_t scale_bytes = info.scale_bytes(columns);
  std::vector<uint32_t> row_scales(static_cast<size_t>(scale_bytes + 3) / 4);
  const auto given_bytes = static_cast<size_t>(given_scales * dtype_bits(info.scales) / 8);
  kernel::QuantRow row{};
  row.input = x.dtype;
  row.n = columns;
  row.smooth = smooth.empty() ? nullptr : smooth.data();
  row.scale = arguments.scale.value_or(0);
  row.offset = arguments.offset.value_or(0);
  row.scales = row_scales.data();
  for (int64_t t = 0; t < rows; ++t) {
    row.x = source.at(t);
    row.next = source.in_place() && t + 1 < rows ? source.at(t + 1) : nullptr;
    row.codes = row_at(static_cast<std::byte*>(codes.data), codes.dtype, codes.strides[0], t);
    ops.quantise[static_cast<int>(info.id)](row);
    if (given_bytes != 0) {
      std::memcpy(row_at(static_cast<std::byte*>(scales.data), scales.dtype, scales.strides[0], t),
                  row_scales.data(), given_bytes);
    }
  }
  return Status::ok();
}

Status dequantise_rows(const RuleInfo& info, const TensorView& codes, const TensorView& scales,
                       int64_t given_scales, const TensorRef& y, const QuantArguments& arguments,
                       const kernel::RowOps& ops) {
  const int64_t rows = codes.shape[0], columns = codes.shape[1];
  std::vector<uint32_t> row_scales(static_cast<size_t>(info.scale_bytes(columns) + 3) / 4);
  std::vector<float> values(static_cast<size_t>(columns));
  Rows code_rows(codes, columns), scale_rows(scales, given_scales);
  const auto given_bytes = static_cast<size_t>(given_scales * dtype_bits(info.scales) / 8);
  kernel::DequantRow row{};
  row.n = columns;
  row.scale = arguments.scale.value_or(0);
  row.offset = arguments.offset.value_or(0);
  row.scales = row_scales.data();
  row.out = values.data();
  for (int64_t t = 0; t < rows; ++t) {
    row.codes = code_rows.at(t);
    if (given_bytes != 0) std::memcpy(row_scales.data(), scale_rows.at(t), given_bytes);
    ops.dequantise[static_cast<int>(info.id)](row);
    float* const out = static_cast<float*>(y.data) + t * y.strides[0];
    for (int64_t i = 0; i < columns; ++i) out[i * y.strides[1]] = values[static_cast<size_t>(i)];
  }
  return Status::ok();
}

}  // namespace

std::vector<QuantRuleInfo> quant_rules() {
  std::vector<QuantRuleInfo> list;
  for (const RuleInfo& info : quant::rules()) {
    list.push_back({info.name, info.codes, info.scales, info.group, input_types(info),
                    info.takes(RuleInfo::kSmooth), info.takes(RuleInfo::kScale),
                    info.takes(RuleInfo::kOffset)});
  }
  return list;
}

Status quantise(std::string_view rule, const TensorView& x, const TensorRef& codes, const TensorRef& scales,
                const QuantArguments& arguments) {
  Result<const RuleInfo*> found = rule_of(rule);
  if (!found) return found.status();
  const RuleInfo& info = **found;
  MEGAMOE_RETURN_IF_ERROR(format::check_type(x, "x", input_types(info)));
  MEGAMOE_RETURN_IF_ERROR(check_rows(x, "x"));
  if (info.even_columns() && x.shape[1] % 2 != 0) {
    return format::wrong_shape(x, "x", "an even number of columns with " + std::string(info.name));
  }
  MEGAMOE_RETURN_IF_ERROR(check_arguments(info, arguments, true, x.shape[1]));
  MEGAMOE_RETURN_IF_ERROR(format::check_type(view(codes), "codes", {info.codes}));
  MEGAMOE_RETURN_IF_ERROR(format::check_same_shape(view(codes), "codes", x));
  MEGAMOE_RETURN_IF_ERROR(check_codes(info, view(codes)));
  Result<int64_t> given = check_scales(info, view(scales), x.shape[0], x.shape[1]);
  if (!given) return given.status();
  MEGAMOE_RETURN_IF_ERROR(check_dense_rows(view(codes), "codes"));
  MEGAMOE_RETURN_IF_ERROR(check_dense_rows(view(scales), "scales"));
  Result<const kernel::RowOps*> ops = row_ops(arguments);
  if (!ops) return ops.status();
  const base::DefaultFpEnv fp_env;
  try {
    return quantise_rows(info, x, codes, scales, *given, arguments, **ops);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "quantise has no memory for one row");
  }
}

Status dequantise(std::string_view rule, const TensorView& codes, const TensorView& scales,
                  const TensorRef& y, const QuantArguments& arguments) {
  Result<const RuleInfo*> found = rule_of(rule);
  if (!found) return found.status();
  const RuleInfo& info = **found;
  MEGAMOE_RETURN_IF_ERROR(check_codes(info, codes));
  MEGAMOE_RETURN_IF_ERROR(check_arguments(info, arguments, false, codes.shape[1]));
  Result<int64_t> given = check_scales(info, scales, codes.shape[0], codes.shape[1]);
  if (!given) return given.status();
  MEGAMOE_RETURN_IF_ERROR(format::check_type(view(y), "y", {DType::kFloat32}));
  MEGAMOE_RETURN_IF_ERROR(format::check_same_shape(view(y), "y", codes));
  MEGAMOE_RETURN_IF_ERROR(format::check_plain(view(y), "y"));
  Result<const kernel::RowOps*> ops = row_ops(arguments);
  if (!ops) return ops.status();
  const base::DefaultFpEnv fp_env;
  try {
    return dequantise_rows(info, codes, scales, *given, y, arguments, **ops);
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "dequantise has no memory for one row");
  }
}

}  // namespace megamoe
