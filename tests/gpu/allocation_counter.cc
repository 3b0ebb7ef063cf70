#include "tests/gpu/allocation_counter.h"

#include <cuda_runtime_api.h>

#include <atomic>

namespace tcgemm {
namespace {

std::atomic<int64_t> device_count{0};
std::atomic<int64_t> pinned_count{0};
std::atomic<int64_t> registered_count{0};
std::atomic<int64_t> stream_and_event_count{0};

}  // namespace

AllocationCounts CountAllocations() {
  return {.device = device_count,
          .pinned = pinned_count,
          .registered = registered_count,
          .streams_and_events = stream_and_event_count};
}

}  // namespace tcgemm

// __real_X is the runtime's X: GNU ld, "--wrap=symbol".
#define TCGEMM_COUNT(counter, name, parameters, arguments) \
  cudaError_t __real_##name parameters;                    \
  cudaError_t __wrap_##name parameters {                   \
    ++tcgemm::counter;                                     \
    return __real_##name arguments;                        \
  }

extern "C" {
TCGEMM_COUNT(device_count, cudaMalloc, (void** p, size_t n), (p, n))
TCGEMM_COUNT(device_count, cudaMallocAsync, (void** p, size_t n, cudaStream_t s), (p, n, s))
TCGEMM_COUNT(device_count, cudaMallocPitch, (void** p, size_t* pitch, size_t w, size_t h),
             (p, pitch, w, h))
TCGEMM_COUNT(pinned_count, cudaMallocHost, (void** p, size_t n), (p, n))
TCGEMM_COUNT(pinned_count, cudaHostAlloc, (void** p, size_t n, unsigned flags), (p, n, flags))
TCGEMM_COUNT(registered_count, cudaHostRegister, (void* p, size_t n, unsigned flags), (p, n, flags))
TCGEMM_COUNT(stream_and_event_count, cudaStreamCreate, (cudaStream_t * s), (s))
TCGEMM_COUNT(stream_and_event_count, cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags),
             (s, flags))
TCGEMM_COUNT(stream_and_event_count, cudaEventCreate, (cudaEvent_t * e), (e))
TCGEMM_COUNT(stream_and_event_count, cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags),
             (e, flags))
}
