// The contract between the pipeline and the kernels of one instruction-set level: plain function pointers
// over plain memory. Nothing here is SIMD; everything in isa/<name>/ implements it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation/params.h"
#include "megamoe/isa.h"
#include "quant/row.h"
#include "quant/rules.h"

namespace megamoe::kernel {

/// Columns of one weight panel. For a gated Linear1 a panel holds 16 gate columns and then the 16 up columns
/// of the same outputs, so one tile yields activated outputs.
inline constexpr int kPanelColumns = 32;
inline constexpr int kGatedColumns = kPanelColumns / 2;

/// The two compute families. A panel of either is dwords [ceil(K / pack)][32 columns]: bf16 holds 2
/// consecutive k of one column in a dword, s8 holds 4; k past K is zero.
enum class Family : int { kBf16 = 0, kS8 = 1 };
inline constexpr int kFamilyCount = 2;

constexpr int k_per_dword(Family family) {
  return family == Family::kBf16 ? 2 : 4;
}
constexpr int64_t panel_bytes(Family family, int64_t k) {
  return (k + k_per_dword(family) - 1) / k_per_dword(family) * kPanelColumns * 4;
}

/// Ranges of k that a product is cut into begin at multiples of this: whole steps of every kernel.
inline constexpr int64_t kRangeStep = 64;

/// How a packed panel stores its weights. kStrip: as tile functions read them, nothing to decode. The MX
/// codes store for every 32 k a line of 32 scale bytes (E8M0, one per column), then the codes: [32 k][32
/// columns] bytes, or nibbles. FP8 has no -0, E4M3 has NaN only in groups with the scale NaN: the sums are
/// the same. kInt4: nibbles of two's complement. kInt4Groups and kE4M3Groups store for
/// every group the header of GroupForm, then the codes: int4 as code + 8, nibbles; E4M3 [k][32 columns]
/// bytes, an even number of k. Nibbles: [ceil(k / 8)][32 columns] dwords whose byte b holds k = b in the low
/// and k = 4 + b in the high half. k past K is zero.
enum class WeightCode : int { kStrip = 0, kE4M3, kE5M2, kE2M1, kInt4, kInt4Groups, kE4M3Groups };
inline constexpr int kWeightCodeCount = 7;
inline constexpr int kMxGroup = 32;

/// Sizes of groups of K that may have scales of their own. Not inline: that would be one symbol for all
/// levels.
constexpr int64_t kGroupSizes[] = {32, 64, 128};
constexpr int64_t groups_of(int64_t k, int64_t group) {
  return (k + group - 1) / group;
}

/// What stands before the codes of a group: 32 scales, then 32 int8 zero points where there are any.
struct GroupForm {
  int64_t group = 0;                 ///< k per group, one of kGroupSizes; 0 with other codes
  DType scales = DType::kUndefined;  ///< float32, float16 or bfloat16
  bool zeros = false;

  int64_t scale_bytes() const { return kPanelColumns * dtype_bits(scales) / 8; }
  int64_t header_bytes() const { return scale_bytes() + (zeros ? kPanelColumns : 0); }
};

inline int64_t stored_panel_bytes(WeightCode code, Family family, int64_t k, const GroupForm& form = {}) {
  const int64_t groups = groups_of(k, kMxGroup);
  switch (code) {
    case WeightCode::kInt4Groups:
      return groups_of(k, form.group) * form.header_bytes() + (k + 7) / 8 * kPanelColumns * 4;
    case WeightCode::kE4M3Groups:
      return groups_of(k, form.group) * form.header_bytes() + (k + 1) / 2 * kPanelColumns * 2;
    case WeightCode::kE4M3:
    case WeightCode::kE5M2:
      return groups * (kMxGroup + 1) * kPanelColumns;
    case WeightCode::kE2M1:
      return groups * (kMxGroup / 2 + 1) * kPanelColumns;
    case WeightCode::kInt4:
      return (k + 7) / 8 * kPanelColumns * 4;
    case WeightCode::kStrip:
      break;
  }
  return panel_bytes(family, k);
}

/// Memory for what coded tiles leave to each other of a range of MX codes: at most whole groups of a byte per
/// code, a float per scale, and a line.
inline constexpr int64_t kept_bytes(int64_t k) {
  return groups_of(k, kMxGroup) * kPanelColumns * (kMxGroup + 4) + 64;
}

/// Turns a range of k of a stored panel into the strip a tile function reads: panel_bytes(family, k) bytes.
struct DecodePanel {
  const void* stored;
  int64_t k;    ///< how many from k_begin on
  void* strip;  ///< 64-byte aligned
  // Where a group kernel multiplies: strips of codes alone, the scales of the groups in the range beside
  // them.
  GroupForm form = {};
  float* scales = nullptr;  ///< gets [groups][32]
  int32_t* sums = nullptr;  ///< gets the column sums of each group, [groups][32]; s8 family
  int64_t k_begin = 0;      ///< a multiple of kRangeStep and of the group
};

/// A row tile of activations in the form the tile function reads.
struct PackRows {
  const void* codes;    ///< first row: bf16 or s8 codes, k per row
  ptrdiff_t row_bytes;  ///< distance between rows
  int rows;             ///< 1 .. max_rows
  int64_t k;  ///< but for groups, ranges from multiples of kRangeStep on follow each other and may come alone
  void* out;  ///< packed_bytes(rows, k) bytes, 64-byte aligned
  // Group kernels only. Rows for E2M1 weights: E2M1 values x 2 as s8, or E4M3 values as bf16.
  int64_t group = 0;  ///< k per group, one of kGroupSizes
  const float* scales =
      nullptr;                ///< first row: a factor per group, powers of two with the s8 family, or null
  ptrdiff_t scale_bytes = 0;  ///< distance between rows of factors
};

/// C[rows][32] = A[rows][k] x panel[k][32], as float (bf16 family) or int32 (s8 family). The value of a row
/// depends on that row and the panel alone, bit for bit, whatever `rows` is and however k is cut: a product
/// may be made of consecutive ranges of k, all but the first with `accumulate`.
struct Tile {
  const void* a;  ///< from pack_rows
  int rows;
  int64_t k;                   ///< of this range
  const void* panel;           ///< where the range starts, 64-byte aligned
  const int32_t* column_sums;  ///< s8 family: sum over all k of each of the 32 columns
  void* c;                     ///< [rows][32] float or int32, 64-byte aligned
  const std::byte* prefetch;   ///< bytes of weights to bring into the cache while working
  int64_t prefetch_bytes;      ///< how many; 0 = none
  int64_t k_begin = 0;      ///< first k of the range in the packed rows, a multiple of kRangeStep and group
  bool accumulate = false;  ///< continue from C
  bool read_once = false;   ///< announce lines as read once, see base::MemoryHabits
  /// Above 0, where the kernel streams: announces the panel itself so many bytes before they are read, as
  /// read once, and the last time as many from `prefetch` on, where the stream goes on; null: behind the
  /// panel. A multiple of a dword row of the panel.
  int64_t ahead = 0;
  int panels = 1;  ///< coded tiles: of stored panels that follow one another; C is [panels][rows][32]
  // Group kernels only: C, always float, is the sum over the groups in ascending order of
  // scale[group][col] * fl(T * row scale[row][group]), T being the product of the group alone; one fused
  // multiply-add for each group, or two roundings where the level has none.
  int64_t group = 0;        ///< k per group, as packed; column_sums are then [groups][32]
  bool row_scaled = false;  ///< the rows were packed with factors
  const float* group_scales =
      nullptr;          ///< of the groups in the range, [groups][32]; coded tiles read stored ones
  GroupForm form = {};  ///< coded tiles: what stands before the codes of a group
  // Coded tiles that keep, see Gemm::kept_rows; those of the s8 family take ranges of k.
  std::byte* kept = nullptr;  ///< kept_bytes(k) bytes for what tiles share, 64-byte aligned, or null
  bool decoded = false;       ///< another tile of rows has left it there
};

inline constexpr int kAnyRows = 1 << 30;

/// One family on one level. `max_rows` is the tallest register tile; callers split rows evenly over tiles.
struct Gemm {
  const char* name;  ///< "bf16_f32_12x32_avx512", "s8_groups_7x32_avx512_vnni"
  Isa isa;
  Family family;
  int max_rows;
  size_t (*packed_bytes)(int rows, int64_t k);
  void (*pack_rows)(const PackRows&);
  /// From a strip. Null: the kernel multiplies from codes at any number of rows.
  void (*tile)(const Tile&);
  /// By WeightCode: the level's own way from stored panels to strips. Null: that of a lower level.
  void (*decode[kWeightCodeCount])(const DecodePanel&) = {};
  /// By WeightCode: the product of 1 .. coded_rows rows with a stored panel, over the whole of K, with the
  /// bits of decode and tile. More rows, or none, go by a strip.
  int coded_rows[kWeightCodeCount] = {};
  /// Up to so many rows coded_tile takes two panels at once, because the sums of one wait for each other.
  int paired_rows[kWeightCodeCount] = {};
  void (*coded_tile[kWeightCodeCount])(const Tile&) = {};
  /// By WeightCode: from so many rows of a panel on, in several tiles, the first one leaves to the others
  /// what it made of codes (s8 family) or of scales (bf16), where coded_tile gets memory for that. 0: never.
  int kept_rows[kWeightCodeCount] = {};
  /// How one tile announces weights where the CPU follows streams
  /// (base::MemoryHabits).
  struct Stream {
    int64_t ahead =
        0;  ///< bytes ahead of where it reads, line by line, from panel to panel; 0: the next panel
    int64_t before_outputs = 0;  ///< bytes behind those, by the caller, before it makes outputs of the tile
    int most_rows = kAnyRows;    ///< taller tiles read the panel more than once
  };
  Stream stream[kWeightCodeCount] = {};  ///< by WeightCode
  uint32_t features = 0;                 ///< of base::CpuFeature, beyond those of the level

  /// Whether it multiplies panels of a code, as they are stored or by way of a strip.
  bool takes(WeightCode code) const {
    return tile != nullptr || coded_tile[static_cast<int>(code)] != nullptr;
  }
};

using activation::ActivationKind;
using activation::ActivationParams;
using activation::kActivationCount;
using quant::DequantRow;
using quant::QuantRow;
using quant::QuantRule;

/// How a tile of accumulators becomes values: which roundings stand where (operator document, arithmetic).
enum class EpilogueKind : int {
  kBf16 = 0,         ///< float sums; Linear1 rounds to bf16 before and after the activation
  kScaledInt32 = 1,  ///< int32 sums x column scale x row scale in float; the activation result stays float
  kScaledFloat = 2   ///< float sums x row scale; the activation result stays float
};
inline constexpr int kEpilogueCount = 3;

/// Linear1: C tile -> activated outputs.
struct Linear1Epilogue {
  const void* c;  ///< [rows][32]; gated: 16 gate then 16 up columns
  int rows;
  int outputs;                 ///< valid outputs of the panel: 1 .. 16 gated, 1 .. 32 for gelu
  const float* column_scales;  ///< [32] in panel order, kScaledInt32 only
  const float* column_shift;   ///< [32], added between column and row scale, kScaledInt32 only, or null
  const float* column_bias;    ///< [32], added after all scales, or null
  const float* row_scales;     ///< [rows], kScaledInt32 and kScaledFloat
  const float* row_weights;    ///< [rows] factors of the activated values, or null
  const ActivationParams* params;
  void* out;  ///< bf16 (kBf16) or float; row r at out + r * out_row_bytes
  ptrdiff_t out_row_bytes;
};

/// Linear2: C tile -> bf16 values, each row to its own place.
struct Linear2Epilogue {
  const void* c;  ///< [rows][32]
  int rows;
  int outputs;  ///< 1 .. 32
  const float* column_scales;
  const float* column_shift;
  const float* column_bias;
  const float* row_scales;
  const float* bias_factors;  ///< [rows] factors of the bias, or null
  uint16_t* const* out;       ///< [rows] where column 0 of this panel goes
  bool stream;  ///< nobody reads the rows soon: whole lines go past the caches; then stream_end()
};

/// Combine of one token: the sum over slots in order of fl(row * weight), in float, multiply then add,
/// rounded once to the type of `out`.
struct CombineRow {
  const uint16_t* const* rows;  ///< [slots] bf16 rows of h elements
  const float* weights;         ///< [slots]
  int slots;                    ///< 0 writes zeros
  int64_t h;
  void* out;
  bool half;                            ///< `out` is float16, otherwise bf16
  const std::byte* prefetch = nullptr;  ///< rows of the next token, to bring into the cache while adding
  int64_t prefetch_bytes = 0;
};

/// Element types of rows that are added: float, float16 and bfloat16.
enum class RowType : int { kFloat32 = 0, kFloat16 = 1, kBf16 = 2 };
inline constexpr int kRowTypeCount = 3;

/// Sum of rows of one type in order, in float, one rounding at the end. With weights each element is
/// multiplied by the weight of its row and rounded to float before it is added.
struct RowSum {
  const void* const* rows;  ///< [count] rows of n elements
  const float* weights;     ///< [count], or null
  int count;                ///< 0 writes zeros
  bool from_zero;           ///< the sum starts from +0 instead of from the first row
  int64_t n;
  void* out;
};

/// Everything one level offers besides matrix tiles.
struct RowOps {
  const char* name;  ///< level name
  Isa isa;
  void (*linear1[kEpilogueCount][kActivationCount])(const Linear1Epilogue&);
  /// The values of a tile as the activation takes them: all 32 columns of the panel, as float.
  void (*linear1_values[kEpilogueCount])(const Linear1Epilogue&);
  void (*linear2[kEpilogueCount])(const Linear2Epilogue&);
  /// One function per rule, by quant::QuantRule; the rules are in quant/, the same bits on every level.
  void (*quantise[quant::kQuantRuleCount])(const QuantRow&);
  void (*dequantise[quant::kQuantRuleCount])(const DequantRow&);
  void (*combine)(const CombineRow&);
  /// n float16 values to the nearest bf16.
  void (*half_to_bf16)(const void* half, int64_t n, uint16_t* out);
  /// n floats cut to bf16.
  void (*cut_to_bf16)(const float* values, int64_t n, uint16_t* out);
  /// 2 x the values of n codes of E2M1, two to a byte; n is even.
  void (*doubled_e2m1)(const uint8_t* codes, int64_t n, int8_t* out);
  /// By family and WeightCode; null where there is nothing to decode. E2M1 in the s8 family is 2 x value, and
  /// its scales come as 2^(byte - 128).
  void (*decode[kFamilyCount][kWeightCodeCount])(const DecodePanel&);
  void (*sum_rows[kRowTypeCount])(const RowSum&);
  /// Sum of the products of two rows, in float, in an order that depends on the level.
  float (*dot[kRowTypeCount])(const void* a, const void* b, int64_t n);
  /// Copies to memory that nobody reads soon, past the caches where the level can. stream_end() comes before
  /// another thread reads it.
  void (*stream_row)(void* out, const void* in, int64_t bytes);
  void (*stream_end)();
};

}  // namespace megamoe::kernel
