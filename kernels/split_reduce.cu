// Adds the parts of a product whose K was split, in their order, and finishes D as every kernel
// does.
//
// A thread takes four neighbours of a row: a load of 16 bytes from each part. Parts were written by
// the kernel before, so they are in the L2 cache as far as they fit. No atomics: which block came
// first would show in the bits.
#include "kernels/ptx/grid_dependency.h"
#include "kernels/split_reduce.h"
#include "kernels/tile/epilogue.h"
#include "kernels/tile/tile_epilogue.h"

namespace tcgemm {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;

// True when it wrote a NaN or an Inf.
__device__ bool StoreElement(const SplitReduceArguments& arguments, TilePosition place, float sum) {
  const LaunchProblem& problem = arguments.problem;
  if (problem.has_epilogue) sum = ApplyEpilogueAt(problem, place, sum);
  const int64_t at = static_cast<int64_t>(place.row) * problem.ldd + place.column;
  if (arguments.output_fp32) {
    const uint32_t bits = Fp32Output(sum);
    static_cast<uint32_t*>(problem.d)[at] = bits;
    return IsNonfiniteFp32(bits);
  }
  const uint32_t bits = Bf16Output(sum);
  static_cast<uint16_t*>(problem.d)[at] = static_cast<uint16_t>(bits);
  return IsNonfiniteBf16(bits);
}

__global__ __launch_bounds__(kThreads) void SplitReduceKernel(
    const __grid_constant__ SplitReduceArguments arguments) {
  const LaunchProblem& problem = arguments.problem;
  const int64_t groups = (problem.n + kPerThread - 1) / kPerThread;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  ptx::WaitForPreviousGrid();
  if (index >= groups * problem.m) return;
  const TilePosition first = {static_cast<int>(index / groups),
                              static_cast<int>(index % groups) * kPerThread};
  // Rows have a multiple of four elements: the last load reads gaps, which nobody uses.
  const float* const from = arguments.parts + first.row * arguments.ld + first.column;
  float4 sum = *reinterpret_cast<const float4*>(from);
  for (int part = 1; part < arguments.count; ++part) {
    const float4 more = *reinterpret_cast<const float4*>(from + part * arguments.part_elements);
    sum.x = AddRn(sum.x, more.x);
    sum.y = AddRn(sum.y, more.y);
    sum.z = AddRn(sum.z, more.z);
    sum.w = AddRn(sum.w, more.w);
  }
  const float sums[kPerThread] = {sum.x, sum.y, sum.z, sum.w};
  bool nonfinite = false;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const TilePosition place = {first.row, first.column + i};
    if (place.column < problem.n) nonfinite |= StoreElement(arguments, place, sums[i]);
  }
  if (nonfinite && problem.nonfinite != nullptr) *problem.nonfinite = 1;
}

}  // namespace

cudaError_t LaunchSplitReduce(const SplitReduceArguments& arguments, cudaStream_t stream) {
  const LaunchProblem& problem = arguments.problem;
  const int64_t groups = (problem.n + kPerThread - 1) / kPerThread;
  const int64_t blocks = (groups * problem.m + kThreads - 1) / kThreads;
  if (blocks < 1 || blocks > INT32_MAX || arguments.count < 1) return cudaErrorInvalidValue;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, SplitReduceKernel, arguments);
}

cudaError_t PrepareSplitReduce() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, SplitReduceKernel);
}

}  // namespace tcgemm
