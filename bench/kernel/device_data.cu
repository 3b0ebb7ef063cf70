#include <cuda_bf16.h>

#include "bench/kernel/device_data.h"

namespace tcgemm::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

// SplitMix64's finaliser, as in matrix/splitmix.h.
__device__ uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__device__ void Store(__nv_bfloat16& out, float value) { out = __float2bfloat16_rn(value); }
__device__ void Store(float& out, float value) { out = value; }

template <typename ELEMENT>
__global__ void NormalKernel(ELEMENT* out, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const uint64_t bits = Mix(Mix(seed) + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
    // Box and Muller; u is never 0.
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
    Store(out[i], sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

__device__ float Load(const DeviceMatrix& x, int64_t row, int64_t col) {
  const int64_t at = row * x.ld + col;
  return x.fp32 ? static_cast<const float*>(x.data)[at]
                : __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[at]);
}

// Differences are not negative: their bits sort as they do.
__global__ void DifferenceKernel(DeviceMatrix x, DeviceMatrix reference, unsigned* largest) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  float mine = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < x.rows * x.cols;
       i += step) {
    const int64_t row = i / x.cols;
    const int64_t col = i % x.cols;
    const float difference = fabsf(Load(x, row, col) - Load(reference, row, col));
    mine = isnan(difference) ? INFINITY : fmaxf(mine, difference);
  }
  atomicMax(largest, __float_as_uint(mine));
}

}  // namespace

cudaError_t FillNormalOnDevice(void* bf16, int64_t count, uint64_t seed) {
  NormalKernel<<<kBlocks, kThreads>>>(static_cast<__nv_bfloat16*>(bf16), count, seed);
  return cudaGetLastError();
}

cudaError_t FillNormalFp32OnDevice(void* fp32, int64_t count, uint64_t seed) {
  NormalKernel<<<kBlocks, kThreads>>>(static_cast<float*>(fp32), count, seed);
  return cudaGetLastError();
}

cudaError_t LargestDifference(const DeviceMatrix& x, const DeviceMatrix& reference, void* scratch,
                              float& difference) {
  cudaError_t error = cudaMemset(scratch, 0, sizeof(unsigned));
  if (error != cudaSuccess) return error;
  DifferenceKernel<<<kBlocks, kThreads>>>(x, reference, static_cast<unsigned*>(scratch));
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  return cudaMemcpy(&difference, scratch, sizeof(float), cudaMemcpyDeviceToHost);
}

}  // namespace tcgemm::bench
