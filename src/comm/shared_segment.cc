// memfd: create, reserve, seal, map.
#include "comm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace megamoe::comm {
namespace {

Status out_of_memory(size_t bytes, const char* step, int error) {
  return Status(Code::kOutOfMemory, "shared memory of " + std::to_string(bytes) + " bytes: needed " +
                                        std::to_string(bytes) + " bytes, " + step + ": " +
                                        std::strerror(error));
}

}  // namespace

Result<Mapping> Mapping::map(const Fd& memory, size_t bytes) {
  struct stat info {};
  // A shorter file, or one that can shrink, would turn an access into SIGBUS.
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (fstat(memory.get(), &info) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      info.st_size != static_cast<off_t>(bytes)) {
    return Status(Code::kSystem, "shared memory of a peer = " + std::to_string(info.st_size) +
                                     " bytes: expected sealed memory of " + std::to_string(bytes) + " bytes");
  }
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED) return out_of_memory(bytes, "mapping", errno);
  madvise(address, bytes, MADV_HUGEPAGE);  // a hint
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(address);
  mapping.bytes_ = bytes;
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<Fd> create_shared_memory(size_t bytes) {
  rlimit file_size{};
  // Beyond this limit the kernel sends SIGXFSZ instead of an error.
  if (bytes > static_cast<size_t>(std::numeric_limits<off_t>::max()) ||
      (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && bytes > file_size.rlim_cur)) {
    return out_of_memory(bytes, "limit of file sizes", EFBIG);
  }
  Fd memory(memfd_create("megamoe", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!memory.valid() && errno == EINVAL)
    memory = Fd(memfd_create("megamoe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return Status(Code::kSystem, std::string("memfd_create: ") + std::strerror(errno));
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    return out_of_memory(bytes, "setting the size", errno);
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Status(Code::kSystem, std::string("sealing shared memory: ") + std::strerror(errno));
  }
  // Touched through a mapping that asks for huge pages first: fallocate alone takes small ones.
  {
    Result<Mapping> mapping = Mapping::map(memory, bytes);
    if (!mapping.is_ok()) return mapping.status();
    madvise(mapping->data(), bytes, MADV_POPULATE_WRITE);
  }
  int error = 0;
  do {
    error = fallocate(memory.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) return out_of_memory(bytes, "reserving the pages", error);
  return memory;
}

}  // namespace megamoe::comm
