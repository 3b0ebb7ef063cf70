// Page-aligned memory of the host, which must be there. Not public.
#ifndef TCGEMM_KERNELS_HOST_MEMORY_H_
#define TCGEMM_KERNELS_HOST_MEMORY_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace tcgemm {

// Bytes that this process can still take: the machine's available memory or what its cgroup
// leaves, whichever is less.
size_t AvailableHostBytes();

enum class Pages {
  kNow,       // every one is touched before the call returns
  kFirstUse,  // they cost nothing until they are used
};

// Zeroed, 4 KiB aligned; 0 bytes give a block without data. RESOURCE_EXHAUSTED beyond
// AvailableHostBytes(): touching more would kill the process.
absl::StatusOr<MemoryBlock> AllocateHostMemory(size_t bytes, Pages pages = Pages::kNow);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_HOST_MEMORY_H_
