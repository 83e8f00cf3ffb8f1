// What the stages beside the matrix products do with one piece: dispatch, prepare, requantise, combine.
#include <algorithm>
#include <cstring>

#include "comm/dispatch.h"
#include "format/bf16.h"
#include "moe/call.h"

namespace megamoe::moe {

float Call::router_weight(int64_t token, int64_t slot) const {
  const TensorView& weights = args_.topk_weights;
  const int64_t at = token * weights.strides[0] + slot * weights.strides[1];
  return weights.dtype == DType::kFloat32
             ? static_cast<const float*>(weights.data)[at]
             : format::bf16_to_float(static_cast<const uint16_t*>(weights.data)[at]);
}

void Call::dispatch(int64_t piece, const Scratch& scratch) {
  const int64_t end = std::min(tokens_, (piece + 1) * dispatch_tokens());
  for (int64_t token = piece * dispatch_tokens(); token < end; ++token) send_token(token, scratch);
}

// Step 5: the token once per used slot to the owner of its expert, and into the rows of the shared experts.
void Call::send_token(int64_t token, const Scratch& scratch) {
  const bool shared = shared_experts() > 0;
  if (owner_.token_map.used(token) == 0 && !shared) return;
  if (!owner_.token_map.active(token)) return share_nothing(token, scratch);
  const int64_t hidden = owner_.config.hidden;
  const Codec& codec = *owner_.codec;
  const std::byte* row = static_cast<const std::byte*>(args_.x.data) +
                         token * args_.x.strides[0] * dtype_bits(args_.x.dtype) / 8;
  comm::TokenRow encoded{row, scratch.scales};
  if (owner_.pass_through) {
    std::memset(scratch.scales, 0, static_cast<size_t>(codec.scale_bytes(hidden)));
    for (int64_t g = 0; g < args_.scales.shape[1]; ++g) {
      scratch.scales[g] = static_cast<const std::byte*>(
          args_.scales.data)[token * args_.scales.strides[0] + g * args_.scales.strides[1]];
    }
  } else {
    if (args_.x.strides[1] != 1) {
      auto* gathered = reinterpret_cast<uint16_t*>(scratch.row);
      const auto* values = reinterpret_cast<const uint16_t*>(row);
      for (int64_t h = 0; h < hidden; ++h) gathered[h] = values[h * args_.x.strides[1]];
      row = scratch.row;
    }
    if (shared) share_codes(token, encode_token(*plan_.shared().scenario->token_codec, row, scratch));
    encoded = encode_token(codec, row, scratch);
  }
  if (owner_.pass_through && shared) share_codes(token, encoded);
  for (int64_t slot = 0; slot < owner_.config.num_topk; ++slot) {
    const int32_t expert = owner_.token_map.expert(token, slot);
    if (expert < 0) continue;
    const comm::RowHome home{owner_.group.rank(), static_cast<int16_t>(slot),
                             static_cast<uint16_t>(expected(token)), token};
    comm::send_row(session_, owner_.layout, owner_.rows, expert, owner_.token_map.order(token, slot), encoded,
                   router_weight(token, slot), home);
  }
}

// A row of x in the form of a codec: in place, or in memory of the thread until the next one.
comm::TokenRow Call::encode_token(const Codec& codec, const std::byte* row, const Scratch& scratch) const {
  if (codec.keeps(args_.x.dtype)) return {row, scratch.scales};
  codec.encode(*plan_.ops, row, args_.x.dtype, owner_.config.hidden, scratch.codes, scratch.scales);
  return {scratch.codes, scratch.scales};
}

// The token, encoded for the shared experts, as one row of each of them.
void Call::share_codes(int64_t token, const comm::TokenRow& row) {
  const Codec& codec = *plan_.shared().scenario->token_codec;
  SharedRows& memory = owner_.shared;
  const base::EvenSplit split = shared_split();
  const int64_t block = split.part_of(token);
  for (int64_t expert = 0; expert < shared_experts(); ++expert) {
    const auto at = static_cast<size_t>(expert * tokens_ + token);
    std::memcpy(memory.codes.data() + at * memory.code_stride, row.codes,
                static_cast<size_t>(codec.row_bytes(owner_.config.hidden)));
    std::memcpy(memory.scales.data() + at * memory.scale_stride, row.scales,
                static_cast<size_t>(codec.scale_bytes(owner_.config.hidden)));
    reinterpret_cast<comm::RowHome*>(memory.homes.data())[at] = {
        owner_.group.rank(), static_cast<int16_t>(expert), static_cast<uint16_t>(expected(token)), token};
    const std::atomic_ref<uint32_t> arrived(
        memory.arrived[static_cast<size_t>(expert * split.parts + block)]);
    const auto target = static_cast<uint32_t>(split.size(block));
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == target) session_.ring(session_.rank());
  }
}

// A row of zeros for the shared experts in place of a token that takes no part, which is not read.
void Call::share_nothing(int64_t token, const Scratch& scratch) {
  const Codec& codec = *plan_.shared().scenario->token_codec;
  std::memset(scratch.row, 0, static_cast<size_t>(codec.row_bytes(owner_.config.hidden)));
  std::memset(scratch.scales, 0, static_cast<size_t>(codec.scale_bytes(owner_.config.hidden)));
  share_codes(token, {scratch.row, scratch.scales});
}

// Codes of `from` to the packed tile at `out`. Without factors a range of columns after the other, so that
// what is decoded stays in the first-level cache: the tile of one row may be all that leaves it.
void Call::pack_tile(const Rows& rows, const LinearPlan& linear, const Codec& codec, const CodeRows& from,
                     std::byte* out, const Scratch& scratch) const {
  constexpr int64_t kRange = 512;
  const pack::Geometry& g = linear.geometry();
  kernel::PackRows pack{from.codes, from.stride, from.count, g.k, out};
  pack.group = g.group();
  if (!codec.decodes()) return linear.gemm->pack_rows(pack);
  const bool factors = codec.has_factors(pack.group);
  const int64_t range = factors ? g.k : kRange;
  pack.codes = rows.operand(from.place);
  pack.row_bytes = static_cast<ptrdiff_t>(rows.workspace->operand_row);
  if (factors) {
    pack.scales = rows.factors(from.place);
    pack.scale_bytes = pack.row_bytes;
  }
  for (int64_t begin = 0; begin < g.k; begin += range) {
    pack.k = std::min(range, g.k - begin);
    for (int r = 0; r < from.count; ++r) {
      codec.decode(*plan_.ops, g.family, from.codes + r * from.stride + codec.row_bytes(begin),
                   from.scales + r * from.scale_stride + codec.scale_bytes(begin), pack.k,
                   reinterpret_cast<float*>(scratch.row), rows.operand(from.place + r),
                   factors ? rows.factors(from.place + r) : nullptr);
    }
    if (begin > 0) pack.out = out + linear.gemm->packed_bytes(from.count, begin);
    linear.gemm->pack_rows(pack);
  }
}

void Call::prepare(const Block& block, int64_t tile, const Scratch& scratch) {
  const Rows& rows = rows_of(block);
  const LinearPlan& linear = rows.plan->linear1;
  const int64_t tiles = linear.tiles(block.rows);
  const int64_t first = LinearPlan::tile_begin(block.rows, tiles, tile);
  const int64_t count = LinearPlan::tile_begin(block.rows, tiles, tile + 1) - first;
  const int64_t arrived = block.first_row + first;
  const CodeRows from{static_cast<int>(count), block.room_row + first,
                      rows.code_row(arrived),  static_cast<ptrdiff_t>(rows.code_stride),
                      rows.scale_row(arrived), static_cast<ptrdiff_t>(rows.scale_stride)};
  pack_tile(rows, linear, *rows.plan->scenario->token_codec, from, rows.packed1(block.room, tile), scratch);
}

void Call::requantise(const Block& block, int64_t tile, const Scratch& scratch) {
  const Rows& rows = rows_of(block);
  const LinearPlan& linear = rows.plan->linear2;
  const Scenario& scenario = *rows.plan->scenario;
  const Codec& codec = *scenario.requantise_codec;
  const int64_t tiles = linear.tiles(block.rows);
  const int64_t begin = block.room_row + LinearPlan::tile_begin(block.rows, tiles, tile);
  const int64_t end = block.room_row + LinearPlan::tile_begin(block.rows, tiles, tile + 1);
  const Workspace& memory = *rows.workspace;
  CodeRows from{static_cast<int>(end - begin), begin,
                rows.activated(begin),         static_cast<ptrdiff_t>(memory.activated_row),
                rows.mid_scales(begin),        static_cast<ptrdiff_t>(memory.scales_row)};
  if (codec.encodes()) {
    for (int64_t row = begin; row < end; ++row) {
      codec.encode(*plan_.ops, rows.activated(row), scenario.activated(), linear.geometry().k,
                   rows.mid_codes(row), rows.mid_scales(row));
    }
    from.codes = rows.mid_codes(begin);
    from.stride = static_cast<ptrdiff_t>(memory.codes_row);
  }
  pack_tile(rows, linear, codec, from, rows.packed2(block.room, tile), scratch);
}

std::byte* Call::place(const Block& block, const comm::RowHome& home) const {
  return block.set == kRouted ? owner_.slot_row(home) : owner_.shared_slot_row(home.token, home.slot);
}

void Call::combine(int64_t piece, const Scratch& scratch) {
  const int64_t end = std::min(tokens_, (piece + 1) * combine_tokens());
  for (int64_t token = piece * combine_tokens(); token < end; ++token) {
    combine_token(token, scratch, token + 1 < end);
  }
}

// A combine row of this rank as bfloat16, decoded to `decoded` where it travels as codes.
const uint16_t* Call::returned_row(int64_t token, int64_t slot, std::byte* decoded,
                                   const Scratch& scratch) const {
  const std::byte* row = owner_.slot_row({owner_.group.rank(), static_cast<int16_t>(slot), 0, token});
  if (owner_.combine_codec == nullptr) return reinterpret_cast<const uint16_t*>(row);
  auto* const values = reinterpret_cast<uint16_t*>(decoded);
  owner_.combine_codec->decode(*plan_.ops, kernel::Family::kBf16, row, row + owner_.slot_scales(),
                               owner_.config.hidden, reinterpret_cast<float*>(scratch.row), values);
  return values;
}

// Rows to sum with their weights, in memory of the thread.
struct Call::Terms {
  const uint16_t** rows;
  float* weights;
  int count = 0;

  Terms(std::byte* memory, int64_t most)
      : rows(reinterpret_cast<const uint16_t**>(memory)), weights(reinterpret_cast<float*>(rows + most)) {}
  void add(const uint16_t* row, float weight) {
    rows[count] = row;
    weights[count++] = weight;
  }
  kernel::CombineRow sum_to(uint16_t* out, int64_t h, DType type = DType::kBFloat16) const {
    return {rows, weights, count, h, out, type == DType::kFloat16};
  }
};

// The rows of one group of ranks as one row, rounded once: members by ascending expert, then slot. Adds a row
// that is alone as it is.
void Call::add_group(int64_t token, int64_t first, Terms& terms, const Scratch& scratch) {
  const int64_t topk = owner_.config.num_topk;
  const route::TokenMap& map = owner_.token_map;
  auto* const members = reinterpret_cast<int64_t*>(scratch.members);
  int64_t count = 0;
  for (int64_t slot = first; slot < topk; ++slot) {
    const int32_t expert = map.expert(token, slot);
    if (expert < 0 || merge_group(expert) != merge_group(map.expert(token, first))) continue;
    int64_t at = count++;
    for (; at > 0 && map.expert(token, members[at - 1]) > expert; --at) members[at] = members[at - 1];
    members[at] = slot;
  }
  if (count == 1) return terms.add(returned_row(token, first, nullptr, scratch), term_weight(token, first));
  Terms group(scratch.group, topk);
  for (int64_t i = 0; i < count; ++i) {
    group.add(returned_row(token, members[i], nullptr, scratch), term_weight(token, members[i]));
  }
  auto* const merged = reinterpret_cast<uint16_t*>(scratch.slots + static_cast<size_t>(terms.count) *
                                                                       owner_.layout_row_bytes());
  plan_.ops->combine(group.sum_to(merged, owner_.config.hidden));
  terms.add(merged, 1.f);
}

// Step 8: y = slots in order, weighted or merged by ranks, then shared experts.
void Call::combine_token(int64_t token, const Scratch& scratch, bool next_follows) {
  const int64_t hidden = owner_.config.hidden;
  const int64_t topk = owner_.config.num_topk;
  const route::TokenMap& map = owner_.token_map;
  Terms terms(scratch.terms, topk + shared_experts());
  const bool merges = owner_.config.combine_comm_mode != 0;
  for (int64_t slot = 0; slot < topk; ++slot) {
    const int32_t expert = map.expert(token, slot);
    if (expert < 0) continue;
    if (!merges) {
      std::byte* const decoded = scratch.slots + static_cast<size_t>(terms.count) * owner_.layout_row_bytes();
      terms.add(returned_row(token, slot, decoded, scratch), term_weight(token, slot));
      continue;
    }
    bool first_of_group = true;
    for (int64_t before = 0; first_of_group && before < slot; ++before) {
      const int32_t other = map.expert(token, before);
      first_of_group = other < 0 || merge_group(other) != merge_group(expert);
    }
    if (first_of_group) add_group(token, slot, terms, scratch);
  }
  for (int64_t expert = 0; map.active(token) && expert < shared_experts(); ++expert) {
    terms.add(reinterpret_cast<const uint16_t*>(owner_.shared_slot_row(token, expert)), 1.f);
  }
  uint16_t* y = static_cast<uint16_t*>(args_.y.data) + token * args_.y.strides[0];
  const bool contiguous = args_.y.strides[1] == 1;
  uint16_t* const out = contiguous ? y : reinterpret_cast<uint16_t*>(scratch.row);
  kernel::CombineRow sum = terms.sum_to(out, hidden, args_.y.dtype);
  if (next_follows) {
    sum.prefetch = owner_.slot_row({owner_.group.rank(), 0, 0, token + 1});
    sum.prefetch_bytes = topk * static_cast<int64_t>(owner_.layout.slot_stride());
  }
  plan_.ops->combine(sum);
  if (contiguous) return;
  for (int64_t h = 0; h < hidden; ++h) y[h * args_.y.strides[1]] = out[h];
}

}  // namespace megamoe::moe
