// Elements and rows of the routing operators in the reference.
#include "reference/routing_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "format/bf16.h"
#include "format/float16.h"
#include "reference/element.h"

namespace megamoe::reference {
namespace {

/// Elements of one row of a contiguous tensor of `rows` rows, which may have any number of dimensions.
int64_t row_elements(const TensorRef& tensor, int64_t last_dims) {
  int64_t n = 1;
  for (int i = tensor.dims - static_cast<int>(last_dims); i < tensor.dims; ++i) n *= tensor.shape[i];
  return n;
}

uint8_t read_nibble(const uint8_t* row, int64_t i) {
  return static_cast<uint8_t>(row[i / 2] >> (i % 2 * 4) & 15);
}

void write_nibble(uint8_t* row, int64_t i, uint8_t value) {
  const int shift = static_cast<int>(i % 2 * 4);
  row[i / 2] = static_cast<uint8_t>((row[i / 2] & ~(15 << shift)) | value << shift);
}

}  // namespace

float read_float(const TensorView& tensor, int64_t offset) {
  if (tensor.dtype == DType::kFloat16) return format::f16_to_float(element<uint16_t>(tensor, offset));
  return read_real(tensor, offset);
}

void write_float(const TensorRef& tensor, int64_t offset, float value) {
  if (tensor.dtype == DType::kFloat16) {
    element<uint16_t>(tensor, offset) = format::f16_from_float(value);
  } else if (tensor.dtype == DType::kBFloat16) {
    element<uint16_t>(tensor, offset) = format::bf16_from_float(value);
  } else {
    element<float>(tensor, offset) = value;
  }
}

std::vector<int64_t> read_slots(const TensorView& tensor) {
  std::vector<int64_t> slots;
  const int64_t columns = tensor.dims > 1 ? tensor.shape[1] : 1;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    for (int64_t k = 0; k < columns; ++k) {
      slots.push_back(read_index(tensor, tensor.dims > 1 ? offset(tensor, i, k) : offset(tensor, i)));
    }
  }
  return slots;
}

std::vector<int64_t> stable_order(const std::vector<int64_t>& keys) {
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
  return order;
}

void copy_row(const TensorView& x, int64_t from, const TensorRef& out, int64_t to) {
  const int64_t n = x.shape[1];
  const int bits = dtype_bits(x.dtype);
  for (int64_t h = 0; h < n; ++h) {
    if (bits == 4) {
      const uint8_t value =
          read_nibble(static_cast<const uint8_t*>(x.data), from * x.strides[0] + h * x.strides[1]);
      write_nibble(static_cast<uint8_t*>(out.data), to * n + h, value);
    } else {
      std::memcpy(static_cast<uint8_t*>(out.data) + (to * n + h) * bits / 8,
                  static_cast<const uint8_t*>(x.data) + offset(x, from, h) * bits / 8,
                  static_cast<size_t>(bits / 8));
    }
  }
}

Status quantise_row_to(std::string_view rule, const TensorView& x, int64_t from,
                       const QuantiseArguments& arguments, const TensorRef& out, const TensorRef& scales,
                       int64_t to) {
  const int64_t n = x.shape[1];
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t h = 0; h < n; ++h) row[h] = read_float(x, offset(x, from, h));
  auto quantised = quantise_row(rule, row, arguments);
  if (!quantised) return quantised.status();
  for (int64_t h = 0; h < n; ++h) {
    if (dtype_bits(out.dtype) == 4) {
      write_nibble(static_cast<uint8_t*>(out.data), to * n + h, quantised->codes[h]);
    } else {
      static_cast<uint8_t*>(out.data)[to * n + h] = quantised->codes[h];
    }
  }
  if (!scales.present()) return Status::ok();
  const int64_t columns = row_elements(scales, scales.dims - 1);
  for (int64_t c = 0; c < columns; ++c) {
    if (scales.dtype == DType::kFloat32) {
      static_cast<float*>(scales.data)[to * columns + c] = quantised->scales[c];
    } else {
      static_cast<uint8_t*>(scales.data)[to * columns + c] = quantised->scale_bytes[c];
    }
  }
  return Status::ok();
}

void clear(const TensorRef& tensor) {
  const int64_t bytes = tensor.elements() * dtype_bits(tensor.dtype) / 8;
  if (tensor.present() && bytes > 0) std::memset(tensor.data, 0, static_cast<size_t>(bytes));
}

Status check_like(const TensorRef& given, const TensorRef& wanted, const std::string& name) {
  bool alike = given.dtype == wanted.dtype && given.dims == wanted.dims && given.layout == wanted.layout;
  for (int i = 0; alike && i < wanted.dims; ++i) alike = given.shape[i] == wanted.shape[i];
  if (!alike) {
    return Status(Code::kInvalidArgument, name + " is " + dtype_name(given.dtype) + " " + given.shape_text() +
                                              ": expected " + dtype_name(wanted.dtype) + " " +
                                              wanted.shape_text());
  }
  if (!given.present() || given.elements() == 0) return Status::ok();
  if (given.data == nullptr || !given.is_contiguous()) {
    return Status(Code::kInvalidArgument, name + ": expected contiguous memory");
  }
  return Status::ok();
}

}  // namespace megamoe::reference
