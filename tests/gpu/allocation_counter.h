// Counts the CUDA runtime's calls that must not happen while requests are served. The linker sends
// every call of the binary through here (-Wl,--wrap, see CMakeLists.txt).
#ifndef TCGEMM_TESTS_GPU_ALLOCATION_COUNTER_H_
#define TCGEMM_TESTS_GPU_ALLOCATION_COUNTER_H_

#include <cstdint>

namespace tcgemm {

struct AllocationCounts {
  int64_t device = 0;      // cudaMalloc, cudaMallocAsync, cudaMallocPitch
  int64_t pinned = 0;      // cudaMallocHost, cudaHostAlloc
  int64_t registered = 0;  // cudaHostRegister
  int64_t streams_and_events = 0;

  bool operator==(const AllocationCounts&) const = default;
};

// Since the process started. Thread-safe.
AllocationCounts CountAllocations();

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_ALLOCATION_COUNTER_H_
