// How fast this chip reads memory through its copy engines: the limit of a product with few rows,
// which must read all of B.
#ifndef TCGEMM_BENCH_KERNEL_READ_PROBE_H_
#define TCGEMM_BENCH_KERNEL_READ_PROBE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tcgemm::bench {

struct ReadProbe {
  const void* data = nullptr;  // device memory, 16-byte aligned
  int64_t bytes = 0;           // whole chunks of them are read: kReadProbeChunk
  uint32_t* sum = nullptr;     // device memory; the XOR of each chunk's first word is XORed to it
};

inline constexpr int64_t kReadProbeChunk = 16384;

// Once per process, before the first launch.
cudaError_t PrepareReadProbe();
// Bulk copies into a ring of shared memory, one thread of each of `blocks` blocks asking. Starts
// while the kernel before it in the stream still runs, as tma_wgmma does. Asynchronous.
cudaError_t LaunchReadProbe(const ReadProbe& probe, int blocks, cudaStream_t stream);
// What a launch should XOR to the sum, read by ordinary loads. Asynchronous.
cudaError_t LaunchExpectedSum(const ReadProbe& probe, cudaStream_t stream);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_READ_PROBE_H_
