// Tables of data types and layouts, text of shapes.
#include "megamoe/tensor.h"

#include <iterator>

namespace megamoe {
namespace {

struct FormatRow {
  const char* name;
  int bits;
  int code;
};
constexpr FormatRow kFormats[] = {
#define MEGAMOE_FORMAT(enumerator, name, bits, code) {name, bits, code},
#include "megamoe/formats.inc"
#undef MEGAMOE_FORMAT
};
constexpr int kFormatCount = static_cast<int>(std::size(kFormats));
constexpr int kUndefinedOpCode = 28;

bool known(DType dtype) {
  return static_cast<int>(dtype) >= 0 && static_cast<int>(dtype) < kFormatCount;
}

}  // namespace

const char* dtype_name(DType dtype) {
  return known(dtype) ? kFormats[static_cast<int>(dtype)].name : "undefined";
}

DType dtype_from_name(std::string_view name) {
  for (int i = 0; i < kFormatCount; ++i) {
    if (name == kFormats[i].name) return static_cast<DType>(i);
  }
  return DType::kUndefined;
}

int dtype_bits(DType dtype) {
  return known(dtype) ? kFormats[static_cast<int>(dtype)].bits : 0;
}

int dtype_op_code(DType dtype) {
  return known(dtype) ? kFormats[static_cast<int>(dtype)].code : kUndefinedOpCode;
}

Result<DType> dtype_from_op_code(int code) {
  if (code == kUndefinedOpCode) return DType::kUndefined;
  std::string expected;
  for (int i = 0; i < kFormatCount; ++i) {
    if (kFormats[i].code < 0) continue;
    if (kFormats[i].code == code) return static_cast<DType>(i);
    expected += std::to_string(kFormats[i].code) + " (" + kFormats[i].name + "), ";
  }
  return Status(Code::kInvalidArgument, "type code " + std::to_string(code) + ": expected " + expected +
                                            "or " + std::to_string(kUndefinedOpCode) + " (undefined)");
}

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::kNd:
      return "ND";
    case Layout::kFractalNz:
      return "FRACTAL_NZ";
    case Layout::kFractalNzC0_32:
      return "FRACTAL_NZ_C0_32";
  }
  return "unknown";
}

Result<Layout> layout_from_name(std::string_view name) {
  std::string expected;
  for (Layout layout : {Layout::kNd, Layout::kFractalNz, Layout::kFractalNzC0_32}) {
    if (name == layout_name(layout)) return layout;
    expected += (expected.empty() ? "" : ", ") + std::string(layout_name(layout));
  }
  return Status(Code::kInvalidArgument,
                "layout " + std::string(name) + " is unknown: expected one of " + expected);
}

template <class Void>
std::string BasicTensor<Void>::shape_text() const {
  if (dims < 0 || dims > kMaxDims) return "of " + std::to_string(dims) + " dimensions";
  std::string text = "(";
  for (int i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (dims == 1 ? ",)" : ")");
}

template struct BasicTensor<const void>;
template struct BasicTensor<void>;

}  // namespace megamoe
