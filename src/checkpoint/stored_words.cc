// Words of eight int4 codes as GPTQ and AWQ checkpoints store them: codes of 0 to 15 less a zero point.
#include <algorithm>
#include <cstring>

#include "checkpoint/stored_linear.h"

namespace megamoe::checkpoint {
namespace {

constexpr int64_t kPerWord = 8;
constexpr int64_t kGroups[] = {32, 64, 128};
constexpr int kOffset = 8;                             // a stored code less it is the int4 code
constexpr uint32_t kFlip = 0x88888888;                 // takes the offset off all codes of a word
constexpr int kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // column of each position in a word

Status unsupported(const std::string& what) {
  return Status(Code::kUnsupported, "quantization_config." + what);
}

uint32_t word_of(const TensorView& t, int64_t i) {
  return static_cast<uint32_t>(static_cast<const int32_t*>(t.data)[i]);
}

/// A word of AWQ with its columns in order.
uint32_t in_order(uint32_t word) {
  uint32_t result = 0;
  for (int i = 0; i < kPerWord; ++i) result |= (word >> (4 * i) & 15) << (4 * kAwqOrder[i]);
  return result;
}

/// Where the codes, scales and zero points of one matrix go.
struct Target {
  uint8_t* codes;       ///< of its first output
  std::byte* scales;    ///< (N, groups)
  int8_t* zeros;        ///< (N, groups)
  int64_t row_bytes;    ///< from one row of codes to the next
  int64_t scale_bytes;  ///< of one scale
  int64_t n, k, groups;
};

/// (K / 8, N) words along the reduction -> rows of N outputs.
void copy_gptq(const TensorView& words, const Target& to) {
  constexpr int64_t kTile = 16;  // outputs written together, so that whole lines are read
  for (int64_t first = 0; first < to.n; first += kTile) {
    const int64_t last = std::min(first + kTile, to.n);
    for (int64_t i = 0; i < to.k / kPerWord; ++i) {
      for (int64_t n = first; n < last; ++n) {
        const uint32_t word = word_of(words, i * to.n + n) ^ kFlip;
        std::memcpy(to.codes + n * to.row_bytes + i * 4, &word, 4);
      }
    }
  }
}

/// (K, N / 8) words along the outputs, interleaved -> rows of K.
void copy_awq(const TensorView& words, const Target& to) {
  const int64_t count = to.n / kPerWord;
  for (int64_t k = 0; k < to.k; ++k) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = in_order(word_of(words, k * count + i)) ^ kFlip;
      std::memcpy(to.codes + k * to.row_bytes + i * 4, &word, 4);
    }
  }
}

struct Method {
  const char* name;
  bool k_last;       ///< words run along the reduction
  bool interleaved;  ///< positions in a word are those of kAwqOrder
  void (*copy)(const TensorView& words, const Target& to);
};
constexpr Method kMethods[] = {{"gptq", true, false, copy_gptq}, {"awq", false, true, copy_awq}};

Result<const Method*> method_of(const StoredQuantisation& given) {
  const auto* method = std::find_if(std::begin(kMethods), std::end(kMethods),
                                    [&](const Method& m) { return given.method == m.name; });
  if (method == std::end(kMethods)) {
    return unsupported("quant_method = " + (given.method.empty() ? "absent" : given.method) +
                       ": expected gptq or awq beside tensors of packed words");
  }
  if (given.bits != 4) return unsupported("bits = " + std::to_string(given.bits) + ": expected 4");
  if (std::find(std::begin(kGroups), std::end(kGroups), given.group) == std::end(kGroups)) {
    return unsupported("group_size = " + std::to_string(given.group) + ": expected 32, 64 or 128");
  }
  if (method->interleaved && !given.version.empty() && given.version != "gemm") {
    return unsupported("version = " + given.version + ": expected gemm");
  }
  return method;
}

/// The tensors of one matrix, checked.
struct Matrix {
  TensorView words, zeros, scales;
};

Result<TensorView> typed(const TensorSet& tensors, const std::string& name, DType dtype,
                         const std::vector<int64_t>& shape) {
  auto found = tensors.find(name);
  if (!found) return found.status();
  if (found->dtype != dtype) {
    return Status(Code::kDataLoss, "tensor '" + name + "' has type " + dtype_name(found->dtype) +
                                       ": expected " + dtype_name(dtype));
  }
  if (!has_shape(*found, shape)) return wrong_shape(name, *found, shape_text(shape));
  return found;
}

/// With activation order the channels of a group do not lie side by side, and every matrix has an order of
/// its own.
Status check_order(const TensorSet& tensors, const std::string& name, int64_t k,
                   const StoredQuantisation& quantisation) {
  if (!quantisation.ordered && !tensors.has(name)) return Status::ok();
  auto order = typed(tensors, name, DType::kInt32, {k});
  if (!order) return order.status();
  const int64_t group = quantisation.group;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t got = static_cast<const int32_t*>(order->data)[i];
    if (got == i / group) continue;
    return Status(Code::kUnsupported, "tensor '" + name + "'[" + std::to_string(i) + "] = " +
                                          std::to_string(got) + ": expected " + std::to_string(i / group) +
                                          ", groups of neighbours (quantised without desc_act)");
  }
  return Status::ok();
}

Result<Matrix> find_matrix(const StoredLinear& from, const Method& method, const std::string& name,
                           int64_t groups) {
  const int64_t n = from.shape.n, k = from.shape.k;
  const TensorSet& tensors = from.tensors;
  Matrix result;
  auto words =
      typed(tensors, name + ".qweight", DType::kInt32,
            method.k_last ? std::vector<int64_t>{k / kPerWord, n} : std::vector<int64_t>{k, n / kPerWord});
  if (!words) return words.status();
  auto zeros = typed(tensors, name + ".qzeros", DType::kInt32, {groups, n / kPerWord});
  if (!zeros) return zeros.status();
  const std::string scale_name = name + ".scales";
  auto scales = tensors.find(scale_name);
  if (!scales) return scales.status();
  if (scales->dtype != DType::kFloat16 && scales->dtype != DType::kBFloat16 &&
      scales->dtype != DType::kFloat32) {
    return Status(Code::kDataLoss,
                  "tensor '" + scale_name + "' has type " + dtype_name(scales->dtype) + ": expected float16");
  }
  if (!has_shape(*scales, {groups, n})) return wrong_shape(scale_name, *scales, shape_text({groups, n}));
  if (Status status = check_order(tensors, name + ".g_idx", k, from.quantisation); !status) return status;
  return Matrix{*words, *zeros, *scales};
}

/// (groups, N) scales and zero points -> (N, groups). True if a zero point is not 0.
bool copy_groups(const Matrix& matrix, bool interleaved, int plus, const Target& to) {
  const auto* const scales = static_cast<const std::byte*>(matrix.scales.data);
  const int64_t size = to.scale_bytes;
  bool any = false;
  for (int64_t g = 0; g < to.groups; ++g) {
    for (int64_t n = 0; n < to.n; ++n) {
      std::memcpy(to.scales + (n * to.groups + g) * size, scales + (g * to.n + n) * size,
                  static_cast<size_t>(size));
      const uint32_t stored = word_of(matrix.zeros, (g * to.n + n) / kPerWord);
      const uint32_t word = interleaved ? in_order(stored) : stored;
      const int zero = static_cast<int>(((word >> (4 * (n % kPerWord))) + static_cast<uint32_t>(plus)) & 15);
      to.zeros[n * to.groups + g] = static_cast<int8_t>(zero - kOffset);
      any = any || zero != kOffset;
    }
  }
  return any;
}

}  // namespace

Result<LinearWeights> read_words(const StoredLinear& from, LayerMemory& memory) {
  auto method = method_of(from.quantisation);
  if (!method) return method.status();
  const auto& [experts, n, k] = from.shape;
  const int64_t group = from.quantisation.group, groups = base::ceil_div(k, group);
  if (n % kPerWord != 0 || k % kPerWord != 0) {
    return Status(Code::kUnsupported, "tensor '" + from.names.first[0] + ".qweight' has " +
                                          std::to_string(n) + " outputs and a reduction of " +
                                          std::to_string(k) + ": expected multiples of 8");
  }
  const int64_t parts = from.names.up.empty() ? 1 : 2, outputs = parts * n;
  auto first = find_matrix(from, **method, from.names.first[0], groups);
  if (!first) return first.status();
  const DType scale_type = first->scales.dtype;
  const int64_t scale_bytes = dtype_bits(scale_type) / 8;
  auto codes = memory.take(experts * outputs * k / 2);
  if (!codes) return codes.status();
  auto scales = memory.take(experts * outputs * groups * scale_bytes);
  if (!scales) return scales.status();
  auto zeros = memory.take(experts * outputs * groups);
  if (!zeros) return zeros.status();

  bool any_zero = false;
  const int64_t row_bytes = ((*method)->k_last ? k : outputs) / 2;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t part = 0; part < parts; ++part) {
      const std::string& name = (part == 0 ? from.names.first : from.names.up)[static_cast<size_t>(e)];
      auto matrix = find_matrix(from, **method, name, groups);
      if (!matrix) return matrix.status();
      if (matrix->scales.dtype != scale_type) {
        return Status(Code::kDataLoss, "tensor '" + name + ".scales' has type " +
                                           dtype_name(matrix->scales.dtype) + ": expected " +
                                           dtype_name(scale_type));
      }
      const int64_t row = e * outputs + part * n;
      Target to{};
      to.codes = reinterpret_cast<uint8_t*>(*codes) +
                 ((*method)->k_last ? row * row_bytes : e * k * row_bytes + part * n / 2);
      to.scales = *scales + row * groups * scale_bytes;
      to.zeros = reinterpret_cast<int8_t*>(*zeros) + row * groups;
      to.row_bytes = row_bytes;
      to.scale_bytes = scale_bytes;
      to.n = n;
      to.k = k;
      to.groups = groups;
      (*method)->copy(matrix->words, to);
      any_zero |= copy_groups(*matrix, (*method)->interleaved, from.quantisation.plus_one ? 1 : 0, to);
    }
  }
  LinearWeights result;
  result.k_last = (*method)->k_last;
  result.scale_group = group;
  result.weight = {TensorView(*codes, DType::kInt4,
                              result.k_last ? std::initializer_list<int64_t>{experts, outputs, k}
                                            : std::initializer_list<int64_t>{experts, k, outputs})};
  result.scale = {TensorView(*scales, scale_type, {experts, outputs, groups})};
  if (any_zero) result.zero = {TensorView(*zeros, DType::kInt8, {experts, outputs, groups})};
  return result;
}

}  // namespace megamoe::checkpoint
