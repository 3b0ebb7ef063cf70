#include "kernels/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

// The first number in `path`; the largest size when there is none ("max").
size_t ReadNumber(const char* path) {
  std::ifstream file(path);
  size_t value;
  return file >> value ? value : std::numeric_limits<size_t>::max();
}

size_t MachineAvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kib;
  std::string rest_of_line;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, rest_of_line);
  }
  return std::numeric_limits<size_t>::max();
}

}  // namespace

size_t AvailableHostBytes() {
  // cgroup v2, as a container sees itself.
  const size_t limit = ReadNumber("/sys/fs/cgroup/memory.max");
  size_t left = limit;
  if (limit != std::numeric_limits<size_t>::max()) {
    left = limit - std::min(limit, ReadNumber("/sys/fs/cgroup/memory.current"));
  }
  return std::min(left, MachineAvailableBytes());
}

absl::StatusOr<MemoryBlock> AllocateHostMemory(size_t bytes, Pages pages) {
  if (bytes == 0) return MemoryBlock();
  const size_t available = AvailableHostBytes();
  if (bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes: ", available, " are available"));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("mmap of ", bytes, " bytes failed: ", std::strerror(errno)));
  }
  // Fewer TLB misses where the kernel has huge pages to give; nothing is lost where it has none.
  madvise(data, bytes, MADV_HUGEPAGE);
  if (pages == Pages::kNow) std::memset(data, 0, bytes);
  return MemoryBlock(data, bytes, [bytes](void* p) { munmap(p, bytes); });
}

}  // namespace tcgemm
