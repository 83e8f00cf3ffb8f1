// The scopes of a thread as a list.
#include "base/interrupt.h"

namespace megamoe::base {
namespace {

thread_local InterruptScope* innermost = nullptr;

}  // namespace

InterruptScope::InterruptScope(bool (*ask)(void*), void* context)
    : ask_(ask), context_(context), outer_(innermost) {
  innermost = this;
}

InterruptScope::~InterruptScope() {
  innermost = outer_;
}

bool can_be_interrupted() {
  return innermost != nullptr;
}

bool interrupted() {
  InterruptScope* const scope = innermost;
  if (scope == nullptr || scope->interrupted_) return scope != nullptr;
  const auto now = std::chrono::steady_clock::now();
  if (now < scope->next_) return false;
  scope->next_ = now + InterruptScope::kPeriod;
  scope->interrupted_ = scope->ask_(scope->context_);
  return scope->interrupted_;
}

}  // namespace megamoe::base
