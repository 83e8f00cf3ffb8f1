// Pages from the operating system.
#include "base/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace megamoe::base {

Result<Pages> Pages::allocate(size_t bytes, bool huge) {
  Pages pages;
  if (bytes == 0) return pages;
  constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;
  // Whole huge pages of addresses, so that the kernel places them on the boundary of one; the memory behind
  // the last whole one is of small pages, so that no more is held than asked for.
  huge = huge && bytes >= kHugePage;
  const size_t mapped = round_up(bytes, huge ? kHugePage : kPage);
  void* address =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return Status(Code::kOutOfMemory,
                  "cannot map " + std::to_string(mapped) + " bytes of memory: " + std::strerror(errno));
  }
  if (huge) {  // hints: the kernel may have none
    const size_t whole = bytes / kHugePage * kHugePage;
    madvise(address, whole, MADV_HUGEPAGE);
    if (whole < mapped) madvise(static_cast<std::byte*>(address) + whole, mapped - whole, MADV_NOHUGEPAGE);
  }
  pages.data_ = static_cast<std::byte*>(address);
  pages.bytes_ = round_up(bytes, kPage);
  pages.mapped_ = mapped;
  return pages;
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

}  // namespace megamoe::base
