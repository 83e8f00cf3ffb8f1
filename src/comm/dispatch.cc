// Rows travel through the transport's put(); counters follow them.
#include "comm/dispatch.h"

#include <atomic>

namespace megamoe::comm {

void count_one(Session& session, int rank, size_t offset, uint32_t target) {
  if (session.segment(rank) == nullptr) {
    session.add(rank, offset, 1);
    return;
  }
  const std::atomic_ref<uint32_t> counter(*segment_at<uint32_t>(session, rank, offset));
  if (counter.fetch_add(1, std::memory_order_acq_rel) + 1 == target) session.ring(rank);
}

uint32_t read_counter(const Session& session, size_t offset) {
  return std::atomic_ref<uint32_t>(*segment_at<uint32_t>(session, session.rank(), offset))
      .load(std::memory_order_acquire);
}

void send_row(Session& session, const SymmLayout& layout, const RowPlan& plan, int64_t expert, uint32_t order,
              const TokenRow& row, float weight, const RowHome& home) {
  const int owner = static_cast<int>(plan.owner(expert));
  const int64_t in_expert = plan.self_offset(expert) + order;
  const auto at = static_cast<size_t>(plan.first_row(expert) + in_expert);
  Transport& transport = session.transport();
  transport.put(owner, layout.codes + at * layout.code_stride(), row.codes,
                static_cast<size_t>(layout.input.code_row_bytes));
  if (layout.input.scale_row_bytes != 0) {
    const auto bytes = static_cast<size_t>(layout.input.scale_row_bytes);
    transport.put(owner, layout.scales + at * bytes, row.scales, bytes);
  }
  transport.put(owner, layout.weights + at * sizeof(float), &weight, sizeof weight);
  transport.put(owner, layout.homes + at * sizeof(RowHome), &home, sizeof home);
  const int64_t block = plan.block_of(expert, in_expert);
  count_one(session, owner,
            layout.arrived + static_cast<size_t>(plan.first_block(expert) + block) * sizeof(uint32_t),
            static_cast<uint32_t>(plan.block_rows(expert, block)));
}

}  // namespace megamoe::comm
