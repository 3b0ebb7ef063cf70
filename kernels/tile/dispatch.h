// From a tile that the plan names to the kernel that was compiled for it. Host code of .cu files.
//
// KERNEL has kKernel<ENTRY, PROBLEMS>, the kernel's address, and Parameters<PROBLEMS>(arguments).
#ifndef TCGEMM_KERNELS_TILE_DISPATCH_H_
#define TCGEMM_KERNELS_TILE_DISPATCH_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/gpu_tiles.h"
#include "kernels/launch.h"

namespace tcgemm {

// sm_120 code holds only the tiles that fit it; all other code, and the PTX for chips to come, all.
#ifdef __CUDA_ARCH__
constexpr bool IsCompiledHere(const GpuTileEntry& entry) {
  return __CUDA_ARCH__ < 1200 || entry.compute_capability == 120;
}
#else
constexpr bool IsCompiledHere(const GpuTileEntry&) { return true; }
#endif

template <typename KERNEL, size_t ENTRY, int PROBLEMS>
cudaError_t LaunchInstance(const LaunchArguments& arguments, cudaStream_t stream) {
  constexpr GpuTile kTile = kGpuTiles[ENTRY].tile;
  auto parameters = KERNEL::template Parameters<PROBLEMS>(arguments);
  void* pointers[] = {&parameters};
  return cudaLaunchKernel(reinterpret_cast<const void*>(KERNEL::template kKernel<ENTRY, PROBLEMS>),
                          dim3(static_cast<unsigned>(arguments.tile_count)), dim3(kTile.threads()),
                          pointers, kTile.shared_bytes(), stream);
}

template <typename KERNEL, size_t ENTRY>
cudaError_t LaunchEntry(const LaunchArguments& arguments, cudaStream_t stream) {
  if (arguments.problem_count == 1) {
    return LaunchInstance<KERNEL, ENTRY, 1>(arguments, stream);
  }
  if constexpr (kGpuTiles[ENTRY].grouped) {
    return LaunchInstance<KERNEL, ENTRY, kMaxLaunchProblems>(arguments, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename KERNEL, size_t... ENTRY>
cudaError_t LaunchAny(const LaunchArguments& arguments, cudaStream_t stream,
                      std::index_sequence<ENTRY...>) {
  cudaError_t result = cudaErrorInvalidValue;
  static_cast<void>(((kGpuTiles[ENTRY].tile == arguments.tile &&
                      (result = LaunchEntry<KERNEL, ENTRY>(arguments, stream), true)) ||
                     ...));
  return result;
}

template <typename KERNEL>
cudaError_t LaunchTiled(const LaunchArguments& arguments, cudaStream_t stream) {
  if (arguments.problem_count < 1 || arguments.problem_count > kMaxLaunchProblems) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tile_count == 0) return cudaSuccess;  // every D is empty
  return LaunchAny<KERNEL>(arguments, stream, std::make_index_sequence<kGpuTiles.size()>());
}

template <typename KERNEL, size_t ENTRY, int PROBLEMS>
cudaError_t PrepareInstance(int shared_limit) {
  constexpr size_t kBytes = kGpuTiles[ENTRY].tile.shared_bytes();
  if (kBytes > static_cast<size_t>(shared_limit)) return cudaSuccess;
  // Setting the attribute loads the code, too.
  return cudaFuncSetAttribute(
      reinterpret_cast<const void*>(KERNEL::template kKernel<ENTRY, PROBLEMS>),
      cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
}

template <typename KERNEL, size_t ENTRY>
cudaError_t PrepareEntry(int shared_limit) {
  const cudaError_t result = PrepareInstance<KERNEL, ENTRY, 1>(shared_limit);
  if constexpr (kGpuTiles[ENTRY].grouped) {
    if (result == cudaSuccess) {
      return PrepareInstance<KERNEL, ENTRY, kMaxLaunchProblems>(shared_limit);
    }
  }
  return result;
}

template <typename KERNEL, size_t... ENTRY>
cudaError_t PrepareAll(int shared_limit, std::index_sequence<ENTRY...>) {
  cudaError_t result = cudaSuccess;
  static_cast<void>((((result = PrepareEntry<KERNEL, ENTRY>(shared_limit)) == cudaSuccess) && ...));
  return result;
}

template <typename KERNEL>
cudaError_t PrepareTiled() {
  int device;
  int shared_limit;
  cudaError_t result = cudaGetDevice(&device);
  if (result != cudaSuccess) return result;
  result = cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (result != cudaSuccess) return result;
  return PrepareAll<KERNEL>(shared_limit, std::make_index_sequence<kGpuTiles.size()>());
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_DISPATCH_H_
