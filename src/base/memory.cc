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
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t rounded = round_up(bytes, huge && bytes >= kHugePage ? kHugePage : 4096);
  void* address =
      mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return Status(Code::kOutOfMemory,
                  "cannot map " + std::to_string(rounded) + " bytes of memory: " + std::strerror(errno));
  }
  if (huge) madvise(address, rounded, MADV_HUGEPAGE);  // a hint: the kernel may have none
  pages.data_ = static_cast<std::byte*>(address);
  pages.bytes_ = rounded;
  return pages;
}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace megamoe::base
