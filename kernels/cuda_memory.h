// Pinned host memory and device memory of one GPU. Not public; no CUDA headers here.
//
// Threads: any. Ownership: a block frees itself, on any thread.
#ifndef TCGEMM_KERNELS_CUDA_MEMORY_H_
#define TCGEMM_KERNELS_CUDA_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace tcgemm {

// Makes `ordinal` the calling thread's GPU, unless it is already. Cheap from the second call on.
// INTERNAL when CUDA refuses.
absl::Status UseCudaDevice(int ordinal);

// Zeroed, every page touched and pinned, near `numa_node` where the system allows it (-1: where
// the system likes). RESOURCE_EXHAUSTED beyond AvailableHostBytes(), or when CUDA has no more;
// INTERNAL for any other error. The calling thread must use the GPU already.
absl::StatusOr<MemoryBlock> AllocatePinnedMemory(size_t bytes, int numa_node);

// 256-byte aligned or better; the contents are undefined. Device memory is there once it is
// allocated: no page is ever faulted in. RESOURCE_EXHAUSTED, saying what is free, when there is
// not enough; INTERNAL otherwise. `ordinal` is used.
absl::StatusOr<MemoryBlock> AllocateGpuMemory(size_t bytes, int ordinal);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CUDA_MEMORY_H_
