#include "bench/kernel/read_probe.h"
#include "kernels/ptx/address.h"
#include "kernels/ptx/grid_dependency.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/tile/ring.h"

namespace tcgemm::bench {
namespace {

constexpr int kStages = 12;
constexpr size_t kSharedBytes = kStages * (kReadProbeChunk + 8);

// "cp.async.bulk": bytes without a tensor map.
__device__ void LoadBulk(uint32_t to, const void* from, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(static_cast<uint32_t>(kReadProbeChunk)), "r"(barrier)
      : "memory");
}

__device__ void AskFor(const ReadProbe& probe, int64_t chunk, uint32_t to, uint32_t barrier) {
  ptx::MbarrierArriveExpectTx(barrier, static_cast<uint32_t>(kReadProbeChunk));
  LoadBulk(to, static_cast<const std::byte*>(probe.data) + chunk * kReadProbeChunk, barrier);
}

// One thread: it waits for a stage, takes its first word, and asks for the chunk `kStages` later.
__global__ void ReadProbeKernel(ReadProbe probe) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t ring = ptx::SharedAddress(memory);
  const uint32_t barriers = ring + kStages * static_cast<uint32_t>(kReadProbeChunk);
  const int64_t chunks = probe.bytes / kReadProbeChunk;
  const int64_t step = gridDim.x;
  for (int stage = 0; stage < kStages; ++stage) ptx::MbarrierInit(barriers + 8 * stage, 1);
  ptx::FenceMbarrierInit();
  ptx::AllowNextGrid();
  ptx::WaitForPreviousGrid();
  int64_t next = blockIdx.x;
  for (int stage = 0; stage < kStages && next < chunks; ++stage, next += step) {
    AskFor(probe, next, ring + stage * static_cast<uint32_t>(kReadProbeChunk),
           barriers + 8 * stage);
  }
  uint32_t sum = 0;
  RingPosition<kStages> position;
  for (int64_t chunk = blockIdx.x; chunk < chunks; chunk += step) {
    const uint32_t barrier = barriers + 8 * position.stage;
    const int64_t at = position.stage * kReadProbeChunk;
    ptx::MbarrierWait(barrier, position.parity);
    sum ^= *reinterpret_cast<const volatile uint32_t*>(memory + at);
    if (next < chunks) AskFor(probe, next, ring + static_cast<uint32_t>(at), barrier);
    next += step;
    position.Advance();
  }
  atomicXor(probe.sum, sum);
}

__global__ void ExpectedSumKernel(ReadProbe probe) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t chunks = probe.bytes / kReadProbeChunk;
  uint32_t sum = 0;
  for (int64_t chunk = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; chunk < chunks;
       chunk += step) {
    sum ^= *reinterpret_cast<const uint32_t*>(static_cast<const std::byte*>(probe.data) +
                                              chunk * kReadProbeChunk);
  }
  atomicXor(probe.sum, sum);
}

}  // namespace

cudaError_t PrepareReadProbe() {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(ReadProbeKernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kSharedBytes));
}

cudaError_t LaunchReadProbe(const ReadProbe& probe, int blocks, cudaStream_t stream) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(1);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, ReadProbeKernel, probe);
}

cudaError_t LaunchExpectedSum(const ReadProbe& probe, cudaStream_t stream) {
  ExpectedSumKernel<<<64, 256, 0, stream>>>(probe);
  return cudaGetLastError();
}

}  // namespace tcgemm::bench
