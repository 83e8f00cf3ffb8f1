// MX codes to strips by table look-up (AVX512_VBMI): the values of kernel/decode.h at the speed of memory.
#pragma once

#include <immintrin.h>

#include "kernel/contract.h"
#include "kernel/isa/avx512_bf16/code_tables.h"

namespace megamoe::isa_avx512_bf16 {

inline constinit const int32_t kSignsOfBytes = static_cast<int32_t>(0x80808080u);

/// What a table holds instead of values: what the scale of a column is added to, or subtracted from. A
/// decoder loads kPairs pairs of k of 32 columns at a time.
template <class Codes, bool kTall = false, bool kFull = false>
class Decoder;

/// Codes of a byte: two look-ups in 128 entries for the two bytes of a value.
/// Tall tiles have no registers for the upper halves of the tables, full ones for none of them.
template <class Codes, bool kTall, bool kFull>
requires(Codes::kBits == 8) class Decoder<Codes, kTall, kFull> {
 public:
  static constexpr int kPairs = 1;
  struct Loaded {
    __m512i low, high;
  };

  Decoder() = default;
  /// For one group: between groups tables need no registers.
  explicit Decoder(const uint8_t* group) : Decoder(tables_for(group)) {}

  [[gnu::always_inline]] Loaded load(const uint8_t* codes, int /*half*/) const {
    const __m512i code = _mm512_permutexvar_epi8(held(order_, tables_->order), _mm512_loadu_si512(codes));
    const __m512i low = look_up(low_, code, tables_->low);
    __m512i high = look_up(high_, code, tables_->high);
    asm("vpternlogd $0xf8, %2%{1to16%}, %1, %0" : "+v"(high) : "v"(code), "m"(kSignsOfBytes));
    return {low, high};
  }
  /// 16 columns of one pair, as dwords of bfloat16.
  [[gnu::always_inline]] __m512i pair(const Loaded& from, int /*pair*/, int half) const {
    return half == 0 ? _mm512_unpacklo_epi8(from.low, from.high) : _mm512_unpackhi_epi8(from.low, from.high);
  }
  [[gnu::always_inline]] static __m512i value(__m512i entry) {
    if constexpr (Codes::kRaised == 0) return _mm512_andnot_si512(_mm512_set1_epi16(1), entry);
    return _mm512_subs_epu16(entry, _mm512_set1_epi16(Codes::kRaised * 128));
  }

 private:
  struct Table {
    explicit Table(const uint8_t (&bytes)[2][64])
        : lower(_mm512_load_si512(bytes[0])), upper(_mm512_load_si512(bytes[1])) {}
    __m512i lower, upper;  ///< the upper half is loaded where it is read in tall tiles
  };
  /// What a register holds, or a load in its place.
  [[gnu::always_inline]] static __m512i held(__m512i bits, const uint8_t (&memory)[64]) {
    if constexpr (!kFull) return bits;
    asm volatile("vmovdqa64 %1, %0" : "=v"(bits) : "m"(memory));
    return bits;
  }
  [[gnu::always_inline]] static __m512i look_up(const Table& table, __m512i code,
                                                const uint8_t (&memory)[2][64]) {
    if constexpr (!kTall) return _mm512_permutex2var_epi8(table.lower, code, table.upper);
    asm("vpermi2b %2, %1, %0" : "+v"(code) : "v"(held(table.lower, memory[0])), "m"(memory[1]));
    return code;
  }
  // One address for all tables: g++ would keep each of theirs, in vector registers when others are short.
  [[gnu::always_inline]] static const ByteTables* tables_for(const uint8_t* group) {
    const ByteTables* tables = &kByteTables<Codes>;
    asm("" : "+r"(tables) : "r"(group));
    return tables;
  }
  explicit Decoder(const ByteTables* tables) : tables_(tables) {}

  const ByteTables* tables_ = &kByteTables<Codes>;
  Table low_{tables_->low}, high_{tables_->high};
  __m512i order_ = _mm512_load_si512(tables_->order);
};

/// Values of nibbles: each word looks its code up by its low five bits.
struct alignas(64) NibbleTable {
  uint16_t values[32] = {};
  uint8_t order[64] = {};  ///< exchanges bytes 1 and 2 of every dword

  /// value(index of five bits) as bfloat16 bits.
  template <class Value>
  static consteval NibbleTable of(Value value) {
    NibbleTable table;
    for (size_t i = 0; i < 64; ++i) {
      table.order[i] = static_cast<uint8_t>(i % 4 == 1 ? i % 16 + 1 : i % 4 == 2 ? i % 16 - 1 : i % 16);
    }
    for (size_t i = 0; i < 32; ++i) table.values[i] = value(i);
    return table;
  }
};

/// bfloat16 of E2M1, raised, without the sign of zero. Bit 4 is of another code: the table stands twice.
constexpr uint16_t raised_e2m1(size_t index) {
  if (index % 8 == 0) return 0;
  const int magnitude = E2M1Codes::kMagnitudes[index % 8] + E2M1Codes::kRaised * 128;
  return static_cast<uint16_t>(magnitude | static_cast<int>(index / 8 % 2) << 15);
}

// Not constexpr: g++ would put copies for the assembly below on the stack.
inline constinit const NibbleTable kNibbles = NibbleTable::of([](size_t i) { return raised_e2m1(i); });

/// Pair number `pair` of the eight k in every dword, as words of which the low four bits count. With bytes 1
/// and 2 of a dword exchanged, the nibbles of its words are k 0, 4, 2, 6 and 1, 5, 3, 7.
[[gnu::always_inline]] inline __m512i nibble_pair(__m512i exchanged, int pair) {
  return _mm512_srli_epi32(exchanged, static_cast<unsigned>(pair % 2 * 8 + pair / 2 * 4));
}
[[gnu::always_inline]] inline __m512i exchanged_bytes(const uint8_t* codes) {
  __m512i words;
  // Tables from memory: tall tiles need the registers.
  asm("vpshufb %2, %1, %0" : "=v"(words) : "v"(_mm512_loadu_si512(codes)), "m"(kNibbles.order));
  return words;
}
[[gnu::always_inline]] inline __m512i look_up(__m512i entries, const NibbleTable& table) {
  __m512i values;
  asm("vpermw %2, %1, %0" : "=v"(values) : "v"(entries), "m"(table.values));
  return values;
}

template <bool kTall, bool kFull>
class Decoder<E2M1Codes, kTall, kFull> {
 public:
  static constexpr int kPairs = 4;
  using Loaded = __m512i;

  Decoder() {
    if constexpr (kTall) return;
    __m512i values = _mm512_load_si512(kNibbles.values);
    asm("" : "+v"(values));  // not from memory, where every look-up takes a load from the activations
    values_ = values;
  }
  [[gnu::always_inline]] Loaded load(const uint8_t* codes, int half) const {
    return exchanged_bytes(codes + 64 * half);
  }
  [[gnu::always_inline]] __m512i pair(Loaded from, int pair, int /*half*/) const {
    const __m512i entries = nibble_pair(from, pair);
    if constexpr (kTall) return look_up(entries, kNibbles);
    return _mm512_permutexvar_epi16(entries, values_);
  }
  [[gnu::always_inline]] static __m512i value(__m512i raised) {
    return _mm512_subs_epu16(raised, _mm512_set1_epi16(E2M1Codes::kRaised * 128));
  }

 private:
  __m512i values_;
};

/// The same word everywhere, for instructions that take no broadcast one.
struct alignas(64) Words {
  uint16_t words[32];
  explicit consteval Words(uint16_t value) : words() {
    for (uint16_t& word : words) word = value;
  }
};
inline constinit const Words kMarks{1};

/// A constant that is made again for every group: between groups there is no register to keep it in.
[[gnu::always_inline]] inline int made_for(const uint8_t* group, int constant) {
  asm("" : "+r"(constant) : "r"(group));
  return constant;
}

[[gnu::always_inline]] inline __m512i words_made_for(const uint8_t* group, int constant) {
  return _mm512_set1_epi16(static_cast<int16_t>(made_for(group, constant)));
}

/// Dwords of 32 bytes in the order in which unpacking the words made of them yields columns 0..15 and 16..31.
alignas(32) inline constinit const int32_t kUnpackOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// The scales of one group of k, added to the exponents. Exact while no value leaves the normal range.
template <class Codes>
struct ExponentScales {
  __m512i change[2];

  /// The change of every column, as words in the order in which `set` unpacks them.
  [[gnu::always_inline]] static __m512i words(const uint8_t* scales) {
    const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(kUnpackOrder));
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)), order);
    const __m512i words = _mm512_slli_epi16(_mm512_cvtepu8_epi16(bytes), 7);
    const __m512i excess = words_made_for(scales, kExcess<Codes>);
    return Codes::kRaised == 0 ? _mm512_sub_epi16(words, excess) : _mm512_sub_epi16(excess, words);
  }
  [[gnu::always_inline]] void set(__m512i words) {
    change[0] = _mm512_unpacklo_epi16(words, words);
    change[1] = _mm512_unpackhi_epi16(words, words);
  }
  [[gnu::always_inline]] void load(const uint8_t* scales) { set(words(scales)); }
  [[gnu::always_inline]] __m512i operator()(__m512i entry, int half) const {
    if constexpr (Codes::kRaised == 0) {
      const __mmask32 finite = _mm512_test_epi16_mask(entry, _mm512_set1_epi16(1));
      return _mm512_mask_add_epi16(entry, finite, entry, change[half]);
    } else {
      return _mm512_subs_epu16(entry, change[half]);
    }
  }
};

/// Bytes in the cache for the scales of a group, 64-byte aligned.
inline constexpr int64_t kScaleRoom = 4 * 64;

/// The same of raised values where tall tiles have no registers for it: in the cache.
template <class Codes>
struct CachedScales {
  std::byte* room;  ///< kScaleRoom bytes

  [[gnu::always_inline]] static __m512i words(const uint8_t* scales) {
    return ExponentScales<Codes>::words(scales);
  }
  [[gnu::always_inline]] void set(__m512i words) {
    ExponentScales<Codes> scales;
    scales.set(words);
    _mm512_store_si512(room, scales.change[0]);
    _mm512_store_si512(room + 64, scales.change[1]);
  }
  [[gnu::always_inline]] void load(const uint8_t* scales) { set(words(scales)); }
  [[gnu::always_inline]] __m512i operator()(__m512i entry, int half) const {
    asm("vpsubusw %1, %0, %0" : "+v"(entry) : "m"(*reinterpret_cast<const __m512i*>(room + 64 * half)));
    return entry;
  }
};

/// Any scales: values times scales in float. By multiply-adds: a multiplication that ends in a subnormal
/// number is several times slower.
template <class Codes>
struct MultipliedScales {
  __m512 scale[2];

  [[gnu::always_inline]] void load(const uint8_t* scales) {
    for (int half = 0; half < 2; ++half) {
      const __m512i byte =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales) + half));
      __m512i bits = _mm512_slli_epi32(byte, 23);
      bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_setzero_si512()),
                                   _mm512_set1_epi32(0x00400000));
      bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(byte, _mm512_set1_epi32(255)),
                                   _mm512_set1_epi32(0x7fc00000));
      scale[half] = _mm512_castsi512_ps(bits);
    }
  }
  [[gnu::always_inline]] __m512i operator()(__m512i entry, int half) const {
    const __m512i pair = Decoder<Codes>::value(entry);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 zero = _mm512_set1_ps(-0.0f);  // leaves the sign of every product
    const __m512 even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), scale[half], zero);
    const __m512 odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(pair, upper)), scale[half], zero);
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                           _mm512_and_si512(_mm512_castps_si512(odd), upper));
  }
};

inline constexpr int kAhead = 4096;  // a panel is read as one stream

template <class Codes>
constexpr int64_t mx_group_bytes() {
  return kernel::kPanelColumns * (1 + kernel::kMxGroup * Codes::kBits / 8);
}

/// Columns of a group in which a code can stand for something else than a normal bfloat16 under its scale.
template <class Codes, int kFirst = 1 - Codes::kLowest>
[[gnu::always_inline]] inline __mmask32 not_normal(const uint8_t* group) {
  constexpr int kLast = 254 - Codes::kHighest;
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
  return _mm256_cmpgt_epu8_mask(
      _mm256_sub_epi8(bytes, _mm256_set1_epi8(static_cast<char>(made_for(group, kFirst)))),
      _mm256_set1_epi8(static_cast<char>(made_for(group, kLast - kFirst))));
}

/// Calls pair(first 16 columns, the others) for every pair of k of a group.
template <template <class> class Scales, class Codes, class Pair>
[[gnu::always_inline]] inline void for_each_pair(const Decoder<Codes>& decoder, const uint8_t* group,
                                                 int64_t pairs, Pair pair) {
  constexpr int kPairs = Decoder<Codes>::kPairs;
  constexpr int kBytes = kPairs * 2 * kernel::kPanelColumns * Codes::kBits / 8;
  Scales<Codes> scales;
  scales.load(group);
  const uint8_t* codes = group + kernel::kPanelColumns;
  for (; pairs > 0; pairs -= kPairs, codes += kBytes) {
    for (int line = 0; line < kBytes; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + line), _MM_HINT_T1);
    }
    const auto first = decoder.load(codes, 0), second = decoder.load(codes, 1);
#pragma GCC unroll 4
    for (int i = 0; i < kPairs; ++i) {
      if (i < pairs) pair(scales(decoder.pair(first, i, 0), 0), scales(decoder.pair(second, i, 1), 1));
    }
  }
}

template <class Codes>
void decode_mx(const kernel::DecodePanel& d) {
  const Decoder<Codes> decoder;
  const auto* group =
      static_cast<const uint8_t*>(d.stored) + d.k_begin / kernel::kMxGroup * mx_group_bytes<Codes>();
  auto* strip = static_cast<std::byte*>(d.strip);
  const auto store = [&](__m512i first, __m512i second) __attribute__((always_inline)) {
    _mm512_store_si512(strip, first);
    _mm512_store_si512(strip + 64, second);
    strip += 2 * 64;
  };
  for (int64_t k = d.k; k > 0; k -= kernel::kMxGroup, group += mx_group_bytes<Codes>()) {
    const int64_t pairs = k < kernel::kMxGroup ? (k + 1) / 2 : int64_t{kernel::kMxGroup} / 2;
    if (not_normal<Codes>(group) == 0) {
      for_each_pair<ExponentScales>(decoder, group, pairs, store);
    } else {
      for_each_pair<MultipliedScales>(decoder, group, pairs, store);
    }
  }
}

}  // namespace megamoe::isa_avx512_bf16
