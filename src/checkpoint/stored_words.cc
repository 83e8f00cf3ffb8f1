// Words of four or eight integer codes as GPTQ, AWQ and compressed-tensors checkpoints store them: unsigned
// codes less a zero point.
#include <algorithm>
#include <cstring>

#include "checkpoint/stored_linear.h"
#include "format/bf16.h"

namespace megamoe::checkpoint {
namespace {

constexpr int kWordBits = 32;
constexpr int64_t kGroups[] = {32, 64, 128};
constexpr int64_t kWholeGroup = 128;  // one scale for all of K is repeated for groups of so many
constexpr int kAwqOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};  // column of each position in a word

Status unsupported(const std::string& what) {
  return Status(Code::kUnsupported, "quantization_config." + what);
}

/// How the codes of a method lie in words.
struct Codes {
  int64_t bits;

  int64_t per_word() const { return kWordBits / bits; }
  /// A stored code less it is the signed one.
  int offset() const { return 1 << (bits - 1); }
  uint32_t mask() const { return (1u << bits) - 1; }
  /// Takes the offset off all codes of a word.
  uint32_t flip() const { return bits == 4 ? 0x88888888u : 0x80808080u; }
};

uint32_t word_of(const TensorView& t, int64_t i) {
  return static_cast<uint32_t>(static_cast<const int32_t*>(t.data)[i]);
}

/// A word of AWQ with its columns in order.
uint32_t in_order(uint32_t word) {
  uint32_t result = 0;
  for (int i = 0; i < 8; ++i) result |= (word >> (4 * i) & 15) << (4 * kAwqOrder[i]);
  return result;
}

/// Where the codes, scales and zero points of one matrix go.
struct Target {
  uint8_t* codes;     ///< of its first output
  std::byte* scales;  ///< (N, groups)
  int8_t* zeros;      ///< (N, groups)
  int64_t row_bytes;  ///< from one row of codes to the next
  int64_t n, k, groups;
};

/// (K / 8, N) words along the reduction -> rows of N outputs.
void copy_gptq(const TensorView& words, const Codes& codes, const Target& to) {
  constexpr int64_t kTile = 16;  // outputs written together, so that whole lines are read
  for (int64_t first = 0; first < to.n; first += kTile) {
    const int64_t last = std::min(first + kTile, to.n);
    for (int64_t i = 0; i < to.k / codes.per_word(); ++i) {
      for (int64_t n = first; n < last; ++n) {
        const uint32_t word = word_of(words, i * to.n + n) ^ codes.flip();
        std::memcpy(to.codes + n * to.row_bytes + i * 4, &word, 4);
      }
    }
  }
}

/// (K, N / 8) words along the outputs, interleaved -> rows of K.
void copy_awq(const TensorView& words, const Codes& codes, const Target& to) {
  const int64_t count = to.n / codes.per_word();
  for (int64_t k = 0; k < to.k; ++k) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = in_order(word_of(words, k * count + i)) ^ codes.flip();
      std::memcpy(to.codes + k * to.row_bytes + i * 4, &word, 4);
    }
  }
}

/// (N, K / 8) words along the reduction -> rows of N outputs.
void copy_rows(const TensorView& words, const Codes& codes, const Target& to) {
  const int64_t count = to.k / codes.per_word();
  for (int64_t n = 0; n < to.n; ++n) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = word_of(words, n * count + i) ^ codes.flip();
      std::memcpy(to.codes + n * to.row_bytes + i * 4, &word, 4);
    }
  }
}

struct Method {
  const char* name;
  const char *words, *scales, *zeros, *order;  ///< suffixes; `order` null where the method has none
  bool k_last;                                 ///< words run along the reduction
  bool interleaved;                            ///< positions in a word are those of kAwqOrder
  bool rows_first;  ///< words, scales (N, groups) and zero points (N / 8, groups) have outputs first
  bool wide;        ///< 8 bits too
  void (*copy)(const TensorView& words, const Codes& codes, const Target& to);
};
constexpr Method kMethods[] = {
    {"gptq", ".qweight", ".scales", ".qzeros", ".g_idx", true, false, false, true, copy_gptq},
    {"awq", ".qweight", ".scales", ".qzeros", nullptr, false, true, false, false, copy_awq},
    {"compressed-tensors", ".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx", true,
     false, true, true, copy_rows},
};

Result<const Method*> method_of(const StoredQuantisation& given, std::string_view suffix) {
  const Method* method = nullptr;
  std::string expected;
  for (const Method& row : kMethods) {
    if (row.words != suffix) continue;
    expected += (expected.empty() ? "" : " or ") + std::string(row.name);
    if (given.method == row.name) method = &row;
  }
  if (method == nullptr) {
    return unsupported("quant_method = " + (given.method.empty() ? "absent" : given.method) + ": expected " +
                       expected + " beside tensors of packed words");
  }
  if (given.bits != 4 && !(method->wide && given.bits == 8)) {
    return unsupported("bits = " + std::to_string(given.bits) + ": expected 4" +
                       (method->wide ? " or 8" : ""));
  }
  const bool whole = given.group == -1;
  if (!whole && std::find(std::begin(kGroups), std::end(kGroups), given.group) == std::end(kGroups)) {
    return unsupported("group_size = " + std::to_string(given.group) + ": expected 32, 64, 128 or -1");
  }
  if (method->interleaved && !given.version.empty() && given.version != "gemm") {
    return unsupported("version = " + given.version + ": expected gemm");
  }
  return method;
}

/// The tensors of one matrix, checked.
struct Matrix {
  TensorView words, zeros, scales;  ///< `zeros` may be absent
};

/// With activation order the channels of a group do not lie side by side, and every matrix has an order of
/// its own.
Status check_order(const StoredLinear& from, const std::string& name, const std::string& owner) {
  const StoredQuantisation& quantisation = from.quantisation;
  const int64_t k = from.shape.k;
  if (!quantisation.ordered && !from.tensors.has(name)) return Status::ok();
  auto order = find_tensor(from.tensors, name, owner, {k}, {DType::kInt32});
  if (!order) return order.status();
  const int64_t group = quantisation.group == -1 ? k : quantisation.group;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t got = static_cast<const int32_t*>(order->data)[i];
    if (got == i / group) continue;
    return tensor_error(from.tensors, name,
                        std::string("[").append(std::to_string(i)) + "] = " + std::to_string(got) +
                            ": expected " + std::to_string(i / group) +
                            ", groups of neighbours (quantised without activation order)",
                        Code::kUnsupported);
  }
  return Status::ok();
}

/// compressed-tensors repeats the sizes of a matrix in a tensor of their own.
Status check_sizes(const StoredLinear& from, const std::string& name, const std::string& owner) {
  if (!from.tensors.has(name)) return Status::ok();
  auto sizes = find_tensor(from.tensors, name, owner, {2}, {DType::kInt64, DType::kInt32});
  if (!sizes) return sizes.status();
  const auto size = [&](int i) {
    return sizes->dtype == DType::kInt64 ? static_cast<const int64_t*>(sizes->data)[i]
                                         : int64_t{static_cast<const int32_t*>(sizes->data)[i]};
  };
  if (size(0) == from.shape.n && size(1) == from.shape.k) return Status::ok();
  return tensor_error(
      from.tensors, name,
      "= " + shape_text({size(0), size(1)}) + ": expected " + shape_text({from.shape.n, from.shape.k}));
}

Result<Matrix> find_matrix(const StoredLinear& from, const Method& method, const Codes& codes,
                           const std::string& name, const std::string& owner) {
  const int64_t n = from.shape.n, k = from.shape.k, per_word = codes.per_word();
  const int64_t groups = from.quantisation.group == -1 ? 1 : base::ceil_div(k, from.quantisation.group);
  const auto turned = [&](int64_t outputs, int64_t other) {
    return method.rows_first ? std::vector<int64_t>{outputs, other} : std::vector<int64_t>{other, outputs};
  };
  Matrix result;
  auto words =
      find_tensor(from.tensors, name + method.words, owner,
                  method.k_last ? turned(n, k / per_word) : turned(n / per_word, k), {DType::kInt32});
  if (!words) return words.status();
  auto scales = find_tensor(from.tensors, name + method.scales, owner, turned(n, groups), kFloatTypes);
  if (!scales) return scales.status();
  result.words = *words;
  result.scales = *scales;
  if (!from.quantisation.symmetric || from.tensors.has(name + method.zeros)) {
    auto zeros =
        find_tensor(from.tensors, name + method.zeros, owner, turned(n / per_word, groups), {DType::kInt32});
    if (!zeros) return zeros.status();
    result.zeros = *zeros;
  }
  if (method.order != nullptr) {
    MEGAMOE_RETURN_IF_ERROR(check_order(from, name + method.order, owner));
  }
  MEGAMOE_RETURN_IF_ERROR(check_sizes(from, name + ".weight_shape", owner));
  return result;
}

/// Scales and zero points -> (N, groups), one for all of K repeated. True if a zero point is not 0.
bool copy_groups(const Matrix& matrix, const Method& method, const Codes& codes, int plus, const Target& to) {
  const auto* const scales = static_cast<const std::byte*>(matrix.scales.data);
  const int64_t size = dtype_bits(matrix.scales.dtype) / 8, per_word = codes.per_word();
  const int64_t stored = matrix.scales.elements() / to.n;  // groups
  bool any = false;
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t s = std::min(g, stored - 1);
    for (int64_t n = 0; n < to.n; ++n) {
      const int64_t at = method.rows_first ? n * stored + s : s * to.n + n;
      std::memcpy(to.scales + (n * to.groups + g) * size, scales + at * size, static_cast<size_t>(size));
      int zero = codes.offset();
      if (matrix.zeros.present()) {
        const int64_t in = method.rows_first ? n / per_word * stored + s : (s * to.n + n) / per_word;
        const uint32_t raw = word_of(matrix.zeros, in);
        const uint32_t word = method.interleaved ? in_order(raw) : raw;
        zero = static_cast<int>((word >> (codes.bits * (n % per_word))) + static_cast<uint32_t>(plus)) &
               static_cast<int>(codes.mask());
      }
      to.zeros[n * to.groups + g] = static_cast<int8_t>(zero - codes.offset());
      any = any || zero != codes.offset();
    }
  }
  return any;
}

/// The numbers of a tensor of floats as float32.
Result<const void*> as_float32(const std::byte* data, DType dtype, int64_t count, LayerMemory& memory) {
  auto made = memory.take(count * static_cast<int64_t>(sizeof(float)));
  if (!made) return made.status();
  const TensorView numbers(data, dtype, {count});
  for (int64_t i = 0; i < count; ++i) reinterpret_cast<float*>(*made)[i] = element(numbers, i);
  return static_cast<const void*>(*made);
}

/// (code - zero) * scale of int8 codes with scales of groups, which no scenario has, rounded to bfloat16.
Result<LinearWeights> as_bfloat16(const LinearWeights& given, LayerMemory& memory) {
  const TensorView &weight = given.weight[0], &scale = given.scale[0];
  const int64_t rows = weight.shape[0] * weight.shape[1], k = weight.shape[2], groups = scale.shape[2];
  auto made = memory.take(rows * k * static_cast<int64_t>(sizeof(uint16_t)));
  if (!made) return made.status();
  auto* out = reinterpret_cast<uint16_t*>(*made);
  const auto* code = static_cast<const int8_t*>(weight.data);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = row * groups + g;
      const float factor = element(scale, at);
      const int zero = given.zero.empty() ? 0 : static_cast<const int8_t*>(given.zero[0].data)[at];
      const int64_t count = std::min(given.scale_group, k - g * given.scale_group);
      for (int64_t i = 0; i < count; ++i) {
        *out++ = format::bf16_from_float(static_cast<float>(*code++ - zero) * factor);
      }
    }
  }
  LinearWeights result;
  result.k_last = true;
  result.weight = {TensorView(*made, DType::kBFloat16, {weight.shape[0], weight.shape[1], k})};
  return result;
}

}  // namespace

Result<LinearWeights> read_words(const StoredLinear& from, LayerMemory& memory) {
  auto found = method_of(from.quantisation, from.form.suffix);
  if (!found) return found.status();
  const Method& method = **found;
  const LinearNames& names = from.names;
  const auto& [experts, n, k] = from.shape;
  const Codes stored{from.quantisation.bits};
  const bool whole_bytes = stored.bits == 8 && from.quantisation.group == -1;
  const bool to_bfloat16 = stored.bits == 8 && !whole_bytes;
  LayerMemory codes_memory;  // of what is not kept
  LayerMemory& kept = to_bfloat16 ? codes_memory : memory;
  const int64_t group = from.quantisation.group == -1 ? kWholeGroup : from.quantisation.group;
  const int64_t groups = whole_bytes ? 1 : base::ceil_div(k, group);
  if (n % stored.per_word() != 0 || k % stored.per_word() != 0) {
    return tensor_error(from.tensors, names.first[0] + method.words,
                        "has " + std::to_string(n) + " outputs and a reduction of " + std::to_string(k) +
                            ": expected multiples of " + std::to_string(stored.per_word()),
                        Code::kUnsupported);
  }
  const int64_t parts = names.up.empty() ? 1 : 2, outputs = parts * n;
  auto first = find_matrix(from, method, stored, names.first[0], names.owners[0]);
  if (!first) return first.status();
  const DType scale_type = first->scales.dtype;
  const int64_t scale_bytes = dtype_bits(scale_type) / 8;
  auto codes = kept.take(experts * outputs * k * stored.bits / 8);
  if (!codes) return codes.status();
  auto scales = kept.take(experts * outputs * groups * scale_bytes);
  if (!scales) return scales.status();
  auto zeros = kept.take(experts * outputs * groups);
  if (!zeros) return zeros.status();

  bool any_zero = false;
  const int64_t row_bytes = (method.k_last ? k : outputs) * stored.bits / 8;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t part = 0; part < parts; ++part) {
      const auto at = static_cast<size_t>(e);
      const std::string& name = (part == 0 ? names.first : names.up)[at];
      auto matrix = find_matrix(from, method, stored, name, names.owners[at]);
      if (!matrix) return matrix.status();
      if (matrix->scales.dtype != scale_type) {
        return wrong_type(from.tensors, name + method.scales, matrix->scales, dtype_name(scale_type));
      }
      const int64_t row = e * outputs + part * n;
      Target to{};
      to.codes = reinterpret_cast<uint8_t*>(*codes) +
                 (method.k_last ? row * row_bytes : e * k * row_bytes + part * n * stored.bits / 8);
      to.scales = *scales + row * groups * scale_bytes;
      to.zeros = reinterpret_cast<int8_t*>(*zeros) + row * groups;
      to.row_bytes = row_bytes;
      to.n = n;
      to.k = k;
      to.groups = groups;
      method.copy(matrix->words, stored, to);
      const bool shifted = copy_groups(*matrix, method, stored, from.quantisation.plus_one ? 1 : 0, to);
      if (shifted && whole_bytes) {
        return tensor_error(from.tensors, name + method.zeros,
                            "has zero points other than 128: expected symmetric weights with 8 bits and "
                            "a scale for each output",
                            Code::kUnsupported);
      }
      any_zero |= shifted;
    }
  }
  LinearWeights result;
  result.k_last = method.k_last;
  if (whole_bytes) {
    auto floats = as_float32(*scales, scale_type, experts * outputs, memory);
    if (!floats) return floats.status();
    result.weight = {TensorView(*codes, DType::kInt8, {experts, outputs, k})};
    result.scale = {TensorView(*floats, DType::kFloat32, {experts, outputs})};
    return result;
  }
  result.scale_group = group;
  result.weight = {TensorView(*codes, to_bfloat16 ? DType::kInt8 : DType::kInt4,
                              result.k_last ? std::initializer_list<int64_t>{experts, outputs, k}
                                            : std::initializer_list<int64_t>{experts, k, outputs})};
  result.scale = {TensorView(*scales, scale_type, {experts, outputs, groups})};
  if (any_zero) result.zero = {TensorView(*zeros, DType::kInt8, {experts, outputs, groups})};
  if (to_bfloat16) return as_bfloat16(result, memory);
  return result;
}

}  // namespace megamoe::checkpoint
